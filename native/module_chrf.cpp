// What Python sees of chrF.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "count.hpp"
#include "index.hpp"
#include "python.hpp"
#include "score.hpp"

namespace mbrace {
namespace {

constexpr int MAX_CHRF_ORDERS = 24;  // of characters and words together
static_assert(MAX_CHRF_ORDERS <= MAX_ORDERS);

Options options_of(int char_order, int word_order, bool whitespace) {
    const bool negative = char_order < 0 || word_order < 0, none = char_order == 0 && word_order == 0;
    if (negative || none || char_order > MAX_CHRF_ORDERS - word_order) {
        throw nb::value_error("char_order and word_order must be at least 0, and 1 to 24 together");
    }
    return {char_order, word_order, whitespace};
}

std::vector<std::shared_ptr<Index>> build_indexes_py(nb::list sentences, int char_order, int word_order, bool whitespace,
                                                     int threads) {
    const Options options = options_of(char_order, word_order, whitespace);
    std::vector<Strings> strings;
    for (nb::handle hypotheses : sentences) strings.emplace_back(hypotheses);
    std::vector<const std::vector<Text>*> texts;
    for (const Strings& each : strings) texts.push_back(&each.texts);
    Unlocked release;
    return build_indexes(options, texts, threads);
}

nb::tuple score_window_py(nb::list indexes, nb::list survivors, nb::list references, double beta, bool eps_smoothing,
                          int threads, const std::string& simd) {
    const std::size_t count = nb::len(indexes);
    if (nb::len(survivors) != count || nb::len(references) != count) {
        throw nb::value_error("indexes, survivors and references must be equally long");
    }
    const Variant& variant = variant_of(simd);
    std::vector<Strings> strings;
    std::vector<Integers> chosen;
    std::vector<Ask> asks;
    nb::list scores;
    Formula formula{};
    for (std::size_t i = 0; i < count; ++i) {
        const Index& index = index_at(indexes, i, beta, eps_smoothing, formula);
        strings.emplace_back(references[i]);
        chosen.push_back(nb::cast<Integers>(survivors[i]));
        const Integers& rows = chosen.back();
        check_survivors(rows, index);
        const std::vector<Text>& texts = strings.back().texts;
        Floats out = make_floats(rows.size(), texts.size(), true);
        asks.push_back({&index, rows.data(), rows.size(), texts.data(), texts.size(), out.data()});
        scores.append(nb::cast(out));
    }
    double encode_share;
    {
        Unlocked release;
        encode_share = score_window(asks, formula, variant, threads);
    }
    return nb::make_tuple(scores, encode_share);
}

nb::tuple score_pairs_py(nb::sequence hypotheses, nb::sequence references, int char_order, int word_order, bool whitespace,
                         double beta, bool eps_smoothing, int threads, const std::string& simd) {
    const Options options = options_of(char_order, word_order, whitespace);
    const Formula formula = formula_of(options, beta, eps_smoothing);
    const Variant& variant = variant_of(simd);
    const Strings own(hypotheses), theirs(references);
    if (own.texts.size() != theirs.texts.size()) throw nb::value_error("hypotheses and references must be equally long");
    Floats scores = make_floats(own.texts.size(), 1, false);
    const std::size_t orders = options.orders();
    auto* totals = new std::int64_t[3 * orders]();
    nb::capsule owner(totals, [](void* p) noexcept { delete[] static_cast<std::int64_t*>(p); });
    {
        Unlocked release;
        score_pairs(options, formula, own.texts, theirs.texts, variant, threads, scores.data(), totals);
    }
    std::size_t shape[2] = {orders, 3};
    return nb::make_tuple(scores, nb::ndarray<nb::numpy, std::int64_t, nb::c_contig>(totals, 2, shape, owner));
}

nb::list simd_variants_py() {
    nb::list names;
    for (const Variant* variant : variants()) names.append(variant->name);
    return names;
}

}  // namespace

void bind_chrf(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Index>(module, "ChrFIndex").def("__len__", &Index::size).def_prop_ro("nbytes", &Index::bytes);
    module.def("build_indexes", &build_indexes_py, "hypotheses"_a, nb::kw_only(), "char_order"_a, "word_order"_a,
               "whitespace"_a, "threads"_a = 1);
    module.def("score_window", &score_window_py, "indexes"_a, "survivors"_a, "references"_a, nb::kw_only(), "beta"_a,
               "eps_smoothing"_a, "threads"_a = 1, "simd"_a = "");
    module.def("score_pairs", &score_pairs_py, "hypotheses"_a, "references"_a, nb::kw_only(), "char_order"_a,
               "word_order"_a, "whitespace"_a, "beta"_a, "eps_smoothing"_a, "threads"_a = 1, "simd"_a = "");
    module.def("simd_variants", &simd_variants_py);
}

}  // namespace mbrace
