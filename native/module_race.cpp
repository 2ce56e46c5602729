// What Python sees of the race in numbers: resamples, tallies, expected utilities and the decisions of a window.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "expected_utilities.hpp"
#include "parallel.hpp"
#include "py_tally.hpp"
#include "python.hpp"
#include "resamples.hpp"

namespace mbrace {
namespace {

constexpr const char* NOT_THE_DRAWS = "counts: must add up to the draws of a resample";

nb::ndarray<nb::numpy, double, nb::c_contig> resample_counts_py(const Resamples& resamples) {
    const std::size_t bootstraps = resamples.bootstraps(), draws = resamples.draws();
    auto* counts = new double[std::max<std::size_t>(bootstraps * draws, 1)];
    nb::capsule owner(counts, [](void* p) noexcept { delete[] static_cast<double*>(p); });
    for (std::size_t b = 0; b < bootstraps; ++b) {
        for (std::size_t r = 0; r < draws; ++r) counts[b * draws + r] = resamples.count(b, r);
    }
    std::size_t shape[2] = {bootstraps, draws};
    return nb::ndarray<nb::numpy, double, nb::c_contig>(counts, 2, shape, owner);
}

std::size_t draws_of(const Integers& counts, std::size_t distinct) {
    if (counts.size() != distinct || distinct == 0) throw nb::value_error(NOT_ONE_EACH);
    std::size_t total = 0;
    for (std::size_t c = 0; c < distinct; ++c) {
        if (counts.data()[c] < 1) throw nb::value_error("counts: each must be 1 or more");
        total += static_cast<std::size_t>(counts.data()[c]);
    }
    return total;
}

template <class Number>
double regret_py(const Resamples& resamples, UtilityTable<Number> utilities, Integers counts,
                 std::optional<Weights> weights, std::vector<std::int64_t> leaders) {
    const std::size_t hypotheses = utilities.shape(0), distinct = utilities.shape(1);
    if (weights && weights->size() != distinct) throw nb::value_error(NOT_ONE_EACH);
    if (draws_of(counts, distinct) != resamples.draws()) throw nb::value_error(NOT_THE_DRAWS);
    if (leaders.empty()) throw nb::value_error("leaders: give at least one");
    for (const std::int64_t leader : leaders) {
        if (leader < 0 || leader >= static_cast<std::int64_t>(hypotheses)) {
            throw nb::index_error("leaders: no such hypothesis");
        }
    }
    Unlocked release;
    return resamples.regret(utilities.data(), hypotheses, distinct, counts.data(), weights ? weights->data() : nullptr,
                            leaders, -1.0);
}

template <class Number>
Numbers<std::int64_t> wins_py(const Resamples& resamples, UtilityTable<Number> utilities, Integers counts,
                              std::optional<Weights> weights, std::size_t rival, std::optional<double> max_losing_wins,
                              bool portable) {
    const std::size_t hypotheses = utilities.shape(0), distinct = utilities.shape(1);
    if (weights && weights->size() != distinct) throw nb::value_error(NOT_ONE_EACH);
    if (draws_of(counts, distinct) != resamples.draws()) throw nb::value_error(NOT_THE_DRAWS);
    if (rival >= hypotheses) throw nb::index_error("rival: no such hypothesis");
    Numbers<std::int64_t> wins = make_numbers<std::int64_t>(hypotheses);
    {
        Unlocked release;
        resamples.wins(utilities.data(), hypotheses, distinct, counts.data(), weights ? weights->data() : nullptr, rival,
                       max_losing_wins ? &*max_losing_wins : nullptr, wins.data(),
                       portable ? WinsVariant::portable : WinsVariant::best);
    }
    return wins;
}

nb::list decide_window_py(nb::list tallies, nb::list resamples, nb::list weights, std::size_t nbest, double max_losing_wins,
                          double max_regret, int threads) {
    const std::size_t size = tallies.size();
    if (resamples.size() != size || weights.size() != size) {
        throw nb::value_error("decide_window: tallies, resamples and weights must be equally long, one entry per sentence");
    }
    if (nbest < 1) throw nb::value_error("nbest: must be 1 or more");
    struct Decision {
        Tally* tally;
        const Resamples* resamples;
        std::optional<Weights> weights;
        std::vector<double> means;
    };
    std::vector<Decision> decisions;
    for (std::size_t i = 0; i < size; ++i) {
        Decision sentence{&nb::cast<PyTally&>(tallies[i]), nullptr, std::nullopt, {}};
        if (!resamples[i].is_none()) sentence.resamples = &nb::cast<const Resamples&>(resamples[i]);
        if (!weights[i].is_none()) sentence.weights = nb::cast<Weights>(weights[i]);
        const std::size_t distinct = sentence.tally->columns();
        if (distinct == 0 || distinct != sentence.tally->counts().size()) {
            throw nb::value_error("utilities: some are missing; add those of every new pseudo-reference first");
        }
        if (sentence.weights && sentence.weights->size() != distinct) throw nb::value_error(NOT_ONE_EACH);
        if (sentence.resamples && (sentence.weights ? distinct : sentence.tally->draws()) != sentence.resamples->draws()) {
            throw nb::value_error(NOT_THE_DRAWS);
        }
        decisions.push_back(std::move(sentence));
    }
    std::vector<const Tally*> each;
    for (const Decision& decision : decisions) each.push_back(decision.tally);
    std::sort(each.begin(), each.end());
    if (std::adjacent_find(each.begin(), each.end()) != each.end()) {
        throw nb::value_error("tallies: the same one twice; give each race once");
    }
    {
        Unlocked release;
        parallel(size, threads, [&](int, std::size_t i) {
            Decision& sentence = decisions[i];
            const double* weights = sentence.weights ? sentence.weights->data() : nullptr;
            sentence.means = sentence.tally->decide(sentence.resamples, weights, nbest, max_losing_wins, max_regret);
        });
    }
    nb::list means;
    for (const Decision& decision : decisions) means.append(numbers_of(decision.means));
    return means;
}

template <class Number>
Numbers<double> expected_utilities_py(UtilityTable<Number> utilities, Weights weights, bool exact) {
    const std::size_t rows = utilities.shape(0), columns = utilities.shape(1);
    if (weights.size() != columns) throw nb::value_error(NOT_ONE_EACH);
    Numbers<double> means = make_numbers<double>(rows);
    if (!exact) expected_utilities(utilities.data(), rows, columns, weights.data(), means.data());
    for (std::size_t row = 0; exact && row < rows; ++row) {
        means.data()[row] = exact_mean(utilities.data() + row * columns, columns, weights.data());
    }
    return means;
}

}  // namespace

void bind_race(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Resamples>(module, "Resamples")
        .def(nb::init<std::uint64_t, std::uint32_t, std::size_t>(), "seed"_a, "draws"_a, "bootstraps"_a)
        .def("counts", &resample_counts_py)
        .def("regret", &regret_py<float>, "utilities"_a.noconvert(), "counts"_a, "weights"_a.none(), "leaders"_a)
        .def("regret", &regret_py<double>, "utilities"_a, "counts"_a, "weights"_a.none(), "leaders"_a)
        .def("wins", &wins_py<float>, "utilities"_a.noconvert(), "counts"_a, "weights"_a.none(), "rival"_a, nb::kw_only(),
             "max_losing_wins"_a = nb::none(), "portable"_a = false)
        .def("wins", &wins_py<double>, "utilities"_a, "counts"_a, "weights"_a.none(), "rival"_a, nb::kw_only(),
             "max_losing_wins"_a = nb::none(), "portable"_a = false);
    nb::class_<PyTally>(module, "Tally")
        .def(nb::init<std::size_t>(), "hypotheses"_a)
        .def(
            "__init__", [](PyTally* tally, nb::sequence texts) { new (tally) PyTally(texts); }, "hypotheses"_a)
        .def_ro("hypotheses", &PyTally::distinct_hypotheses)
        .def_prop_ro("strings", [](const PyTally& tally) { return tally.Tally::strings(); })
        .def("enter", &PyTally::enter<float>, "table"_a.noconvert())
        .def("enter", &PyTally::enter<double>, "table"_a)
        .def("leave_out", &PyTally::leave_out, "row"_a, "column"_a)
        .def("__len__", [](const PyTally& tally) { return tally.alive().size(); })
        .def("draw", &PyTally::draw, "texts"_a)
        .def("add", &PyTally::add<float>, "table"_a.noconvert())
        .def("add", &PyTally::add<double>, "table"_a)
        .def("keep", &PyTally::keep, "rows"_a)
        .def_prop_ro(
            "alive", [](const PyTally& tally) { return numbers_of(tally.alive()); }, nb::rv_policy::automatic)
        .def_prop_ro(
            "counts", [](const PyTally& tally) { return numbers_of(tally.counts()); }, nb::rv_policy::automatic)
        .def_prop_ro("draws", [](const PyTally& tally) { return tally.draws(); })
        .def("expected_utilities", &PyTally::expected_utilities, "weights"_a.none())
        .def_prop_ro("spread", [](const PyTally& tally) { return tally.Tally::spread(); })
        .def_prop_ro(
            "utilities", [](PyTally& tally) { return tally.table(std::nullopt); }, nb::rv_policy::automatic)
        .def("utilities_under", &PyTally::table, "weights"_a.none());
    module.def("decide_window", &decide_window_py, "tallies"_a, "resamples"_a, "weights"_a, nb::kw_only(), "nbest"_a,
               "max_losing_wins"_a, "max_regret"_a = 0.0, "threads"_a = 1);
    module.def("expected_utilities", &expected_utilities_py<float>, "utilities"_a.noconvert(), "weights"_a, nb::kw_only(),
               "exact"_a = false);
    module.def("expected_utilities", &expected_utilities_py<double>, "utilities"_a, "weights"_a, nb::kw_only(),
               "exact"_a = false);
}

}  // namespace mbrace
