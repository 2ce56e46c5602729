// What Python sees of BLEU.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bleu.hpp"
#include "python.hpp"

namespace mbrace {
namespace {

Tokenizer tokenizer_of(const std::string& name) {
    if (name == "13a") return Tokenizer::mteval13a;
    if (name == "char") return Tokenizer::characters;
    if (name == "none") return Tokenizer::none;
    throw std::invalid_argument("tokenizer '" + name + "' is not native; choose one of: 13a, char, none");
}

Smoothing smoothing_of(const std::string& name) {
    if (name == "none") return Smoothing::none;
    if (name == "floor") return Smoothing::floor;
    if (name == "add-k") return Smoothing::add_k;
    if (name == "exp") return Smoothing::exponential;
    throw std::invalid_argument("smoothing '" + name + "' is unknown; choose one of: exp, floor, add-k, none");
}

int order_of(int order) {
    if (order < 1 || order > MAX_ORDERS) {
        throw std::invalid_argument("order must be 1 to " + std::to_string(MAX_ORDERS));
    }
    return order;
}

void add_hypotheses_py(nb::list indexes, nb::list hypotheses, int threads) {
    if (nb::len(hypotheses) != nb::len(indexes)) throw nb::value_error("indexes and hypotheses must be equally long");
    std::vector<Strings> strings;
    std::vector<BleuIndex*> chosen;
    for (nb::handle index : indexes) chosen.push_back(nb::cast<BleuIndex*>(index));
    for (nb::handle texts : hypotheses) strings.emplace_back(texts);
    std::vector<BleuIndex*> sorted = chosen;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
        throw nb::value_error("indexes must differ from one another");
    }
    std::vector<const std::vector<Text>*> texts;
    for (const Strings& each : strings) texts.push_back(&each.texts);
    Unlocked release;
    add_hypotheses(chosen, texts, threads);
}

nb::tuple score_bleu_window_py(nb::list indexes, nb::list rows, nb::list references, const std::string& smoothing,
                               double smoothing_value, bool effective_order, int threads) {
    const std::size_t count = nb::len(indexes);
    if (nb::len(rows) != count || nb::len(references) != count) {
        throw nb::value_error("indexes, rows and references must be equally long");
    }
    std::vector<Strings> strings;
    std::vector<Integers> chosen;
    std::vector<BleuAsk> asks;
    nb::list tables;
    for (std::size_t i = 0; i < count; ++i) {
        const BleuIndex* index = nb::cast<const BleuIndex*>(indexes[i]);
        if (i && index->order() != asks[0].index->order()) throw nb::value_error("the indexes have different orders");
        strings.emplace_back(references[i]);
        chosen.push_back(nb::cast<Integers>(rows[i]));
        const Integers& asked = chosen.back();
        for (std::size_t k = 0; k < asked.size(); ++k) {
            if (asked.data()[k] < 0 || static_cast<std::size_t>(asked.data()[k]) >= index->size()) {
                throw nb::index_error("a row is not in the index");
            }
        }
        const std::vector<Text>& texts = strings.back().texts;
        Floats table = make_floats(asked.size(), texts.size(), true);
        asks.push_back({index, asked.data(), asked.size(), texts.data(), texts.size(), table.data()});
        tables.append(nb::cast(table));
    }
    double encode_share = 0;
    if (count > 0) {
        const BleuFormula formula(smoothing_of(smoothing), smoothing_value, effective_order, asks[0].index->order());
        Unlocked release;
        encode_share = score_bleu_window(asks, formula, threads);
    }
    return nb::make_tuple(tables, encode_share);
}

using Counts = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>, nb::c_contig>;
using GivenCounts = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Counts bleu_statistics_py(nb::list hypotheses, nb::list references, const std::string& tokenizer, int order, int threads) {
    const Strings own(hypotheses), theirs(references);
    if (own.texts.size() != theirs.texts.size()) throw nb::value_error("hypotheses and references must be equally long");
    const Tokenizer chosen = tokenizer_of(tokenizer);
    const std::size_t columns = 2 + 2 * static_cast<std::size_t>(order_of(order));
    auto* statistics = new std::int64_t[std::max<std::size_t>(own.texts.size() * columns, 1)];
    nb::capsule owner(statistics, [](void* p) noexcept { delete[] static_cast<std::int64_t*>(p); });
    {
        Unlocked release;
        bleu_statistics(chosen, order, own.texts, theirs.texts, threads, statistics);
    }
    std::size_t shape[2] = {own.texts.size(), columns};
    return Counts(statistics, 2, shape, owner);
}

Numbers<double> bleu_scores_py(GivenCounts statistics, const std::string& smoothing, double smoothing_value,
                               bool effective_order) {
    const std::size_t pairs = statistics.shape(0), columns = statistics.shape(1);
    if (columns < 4 || columns % 2 != 0) throw nb::value_error("statistics: must be (pairs, 2 + 2 * order)");
    const int order = order_of(static_cast<int>(columns / 2 - 1));
    const BleuFormula formula(smoothing_of(smoothing), smoothing_value, effective_order, order);
    Numbers<double> scores = make_numbers<double>(pairs);
    for (std::size_t i = 0; i < pairs; ++i) {
        const std::int64_t* own = statistics.data() + i * columns;
        scores.data()[i] =
            formula.score(own + 2, own + 2 + order, static_cast<double>(own[0]), static_cast<double>(own[1]));
    }
    return scores;
}

}  // namespace

void bind_bleu(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<BleuIndex>(module, "BleuIndex")
        .def(
            "__init__",
            [](BleuIndex* self, const std::string& tokenizer, int order) {
                new (self) BleuIndex(tokenizer_of(tokenizer), order_of(order));
            },
            nb::kw_only(), "tokenizer"_a, "order"_a)
        .def("__len__", &BleuIndex::size)
        .def_prop_ro("nbytes", &BleuIndex::bytes);
    module.def("add_bleu_hypotheses", &add_hypotheses_py, "indexes"_a, "hypotheses"_a, nb::kw_only(), "threads"_a = 1);
    module.def("score_bleu_window", &score_bleu_window_py, "indexes"_a, "rows"_a, "references"_a, nb::kw_only(),
               "smoothing"_a, "smoothing_value"_a, "effective_order"_a, "threads"_a = 1);
    module.def("bleu_statistics", &bleu_statistics_py, "hypotheses"_a, "references"_a, nb::kw_only(), "tokenizer"_a,
               "order"_a, "threads"_a = 1);
    module.def("bleu_scores", &bleu_scores_py, "statistics"_a, nb::kw_only(), "smoothing"_a, "smoothing_value"_a,
               "effective_order"_a);
}

}  // namespace mbrace
