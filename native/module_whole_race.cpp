// What Python sees of whole races with chrF.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "py_tally.hpp"
#include "python.hpp"
#include "whole_race.hpp"

namespace mbrace {
namespace {

// Of each race: the expected utilities of those left, and its steps. Then the seconds spent on reading pseudo-references, on
// pairs, and on decisions.
nb::tuple race_lists_py(nb::list tallies, nb::list indexes, nb::list drawn, nb::list scored,
                        const std::vector<std::size_t>& sizes, nb::dict resamples, std::size_t nbest, std::size_t enough,
                        double max_losing_wins, double max_regret, double beta, bool eps_smoothing,
                        const std::string& simd) {
    const std::size_t count = nb::len(tallies);
    if (nb::len(indexes) != count || nb::len(drawn) != count || nb::len(scored) != count) {
        throw nb::value_error("tallies, indexes, drawn and scored must be equally long");
    }
    if (nbest < 1 || enough < 1) throw nb::value_error("nbest and enough: must be 1 or more");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] <= (i ? sizes[i - 1] : 0)) throw nb::value_error("sizes: must grow, from 1 on");
    }
    RacePlan plan{sizes, {}, nbest, enough, max_losing_wins, max_regret, {}, &variant_of(simd)};
    for (auto [draws, of_size] : resamples) {
        const auto& found = nb::cast<const Resamples&>(of_size);
        if (nb::cast<std::size_t>(draws) != found.draws()) throw nb::value_error("resamples: of another number of draws");
        plan.resamples.emplace(found.draws(), &found);
    }
    std::vector<Strings> strings;
    strings.reserve(2 * count);
    std::vector<WholeRace> races;
    std::vector<PyTally*> each;
    for (std::size_t i = 0; i < count; ++i) {
        PyTally& tally = nb::cast<PyTally&>(tallies[i]);
        const Index& index = index_at(indexes, i, beta, eps_smoothing, plan.formula);
        if (index.size() < tally.hypotheses()) throw nb::value_error("indexes: a hypothesis is missing");
        if (tally.columns() != tally.counts().size()) throw nb::value_error("tallies: utilities are missing");
        strings.emplace_back(drawn[i]);
        const std::vector<Text>& texts = strings.back().texts;
        strings.emplace_back(scored[i]);
        if (strings.back().texts.size() != texts.size()) throw nb::value_error("drawn and scored: not equally many");
        if (std::find(each.begin(), each.end(), &tally) != each.end()) throw nb::value_error("tallies: the same one twice");
        each.push_back(&tally);
        races.push_back({&tally, &index, texts.data(), strings.back().texts.data(), texts.size(), {}, {}, {}});
    }
    double reading = 0, counting = 0, deciding = 0;
    {
        Unlocked release;
        Workers workers(1);
        Worker& worker = workers[0];
        for (WholeRace& race : races) race.run(plan, worker);
        for (const WholeRace& race : races) deciding += seconds(race.deciding);
        reading = seconds(worker.encoding);
        counting = seconds(worker.counting);
        finish_call(workers);
    }
    nb::list means, steps;
    for (std::size_t i = 0; i < count; ++i) {
        const WholeRace& race = races[i];
        for (const std::size_t at : race.first_drawn) each[i]->buffers.push_back(nb::borrow(strings[2 * i].buffer(at)));
        means.append(numbers_of(race.means));
        nb::list own;
        for (const auto& step : race.steps) own.append(nb::make_tuple(step.draws, step.survivors, step.calls, step.pairs));
        steps.append(own);
    }
    return nb::make_tuple(means, steps, nb::make_tuple(reading, counting, deciding));
}

}  // namespace

void bind_whole_race(nb::module_& module) {
    using namespace nb::literals;
    module.def("race_lists", &race_lists_py, "tallies"_a, "indexes"_a, "drawn"_a, "scored"_a, nb::kw_only(), "sizes"_a,
               "resamples"_a, "nbest"_a, "enough"_a, "max_losing_wins"_a, "max_regret"_a, "beta"_a, "eps_smoothing"_a,
               "simd"_a = "");
}

}  // namespace mbrace
