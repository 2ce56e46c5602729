// What Python sees of reference aggregation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cmath>

#include "aggregate.hpp"
#include "python.hpp"

namespace mbrace {
namespace {

nb::tuple score_aggregates_py(nb::list indexes, nb::list survivors, nb::list aggregates, double beta, bool eps_smoothing,
                              int threads) {
    const std::size_t count = nb::len(indexes);
    if (nb::len(survivors) != count || nb::len(aggregates) != count) {
        throw nb::value_error("indexes, survivors and aggregates must be equally long");
    }
    std::vector<Strings> strings;  // own what the requests point to
    std::vector<Weights> weights;
    std::vector<Integers> chosen;
    std::vector<AggregateAsk> asks;
    nb::list scores;
    Formula formula{};
    for (std::size_t i = 0; i < count; ++i) {
        const Index& index = index_at(indexes, i, beta, eps_smoothing, formula);
        chosen.push_back(nb::cast<Integers>(survivors[i]));
        check_survivors(chosen.back(), index);
        AggregateAsk ask{&index, chosen.back().data(), chosen.back().size(), {}, nullptr};
        for (nb::handle each : nb::cast<nb::list>(aggregates[i])) {
            const nb::tuple pair = nb::cast<nb::tuple>(each);
            if (nb::len(pair) != 2) throw nb::value_error("an aggregate is its texts and their weights");
            strings.emplace_back(pair[0]);
            weights.push_back(nb::cast<Weights>(pair[1]));
            const std::vector<Text>& texts = strings.back().texts;
            const Weights& shares = weights.back();
            if (texts.empty() || shares.size() != texts.size()) {
                throw nb::value_error("an aggregate has at least one text, and a weight for each");
            }
            for (std::size_t k = 0; k < shares.size(); ++k) {
                if (!(shares.data()[k] > 0) || !std::isfinite(shares.data()[k])) {
                    throw nb::value_error("the weights of an aggregate must be positive and finite");
                }
            }
            ask.aggregates.push_back({texts.data(), shares.data(), texts.size()});
        }
        Floats out = make_floats(ask.survivor_count, ask.aggregates.size(), true);
        ask.scores = out.data();
        asks.push_back(ask);
        scores.append(nb::cast(out));
    }
    double encode_share;
    {
        nb::gil_scoped_release release;
        encode_share = score_aggregates(asks, formula, threads);
    }
    return nb::make_tuple(scores, encode_share);
}

}  // namespace

void bind_aggregate(nb::module_& module) {
    using namespace nb::literals;
    module.def("score_aggregates", &score_aggregates_py, "indexes"_a, "survivors"_a, "aggregates"_a, nb::kw_only(),
               "beta"_a, "eps_smoothing"_a, "threads"_a = 1);
}

}  // namespace mbrace
