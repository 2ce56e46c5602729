// What Python sees of the forecast that lets hypotheses into a race, and of likeness.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>

#include "forecast.hpp"
#include "likeness.hpp"
#include "parallel.hpp"
#include "python.hpp"

namespace mbrace {
namespace {

void make_forecast(Forecast* self, nb::sequence texts) {
    const Strings given(texts);
    Unlocked unlocked;
    new (self) Forecast(given.texts);
}

Numbers<std::int64_t> start_py(Forecast& forecast, std::size_t count) {
    if (forecast.entered()) throw nb::value_error("the first hypotheses are in already");
    std::vector<std::int64_t> chosen;
    {
        Unlocked unlocked;
        chosen = forecast.start(count);
    }
    return numbers_of(chosen);
}

void check_means(const Forecast& forecast, const Weights& means) {
    if (means.size() != forecast.entered()) throw nb::value_error("give the mean of each hypothesis that entered");
}

Numbers<std::int64_t> next_py(Forecast& forecast, const Weights& means, double rival, double least, std::size_t most) {
    check_means(forecast, means);
    std::vector<std::int64_t> chosen;
    {
        Unlocked unlocked;
        chosen = forecast.next(means.data(), rival, least, most);
    }
    return numbers_of(chosen);
}

// For each sentence its forecast and the first hypotheses, which are in it.
nb::list build_forecasts_py(nb::list sentences, std::size_t count, int threads) {
    std::vector<Strings> strings;
    for (nb::handle hypotheses : sentences) strings.emplace_back(hypotheses);
    std::vector<std::shared_ptr<Forecast>> forecasts(strings.size());
    std::vector<std::vector<std::int64_t>> chosen(strings.size());
    {
        Unlocked unlocked;
        parallel(strings.size(), threads, [&](int, std::size_t i) {
            forecasts[i] = std::make_shared<Forecast>(strings[i].texts);
            chosen[i] = forecasts[i]->start(count);
        });
    }
    nb::list built;
    for (std::size_t i = 0; i < strings.size(); ++i) {
        built.append(nb::make_tuple(nb::cast(forecasts[i]), numbers_of(chosen[i])));
    }
    return built;
}

// `next` of several sentences.
nb::list next_window_py(nb::list forecasts, nb::list means, const Weights& rivals, const Weights& least, std::size_t most,
                        int threads) {
    const std::size_t count = nb::len(forecasts);
    if (nb::len(means) != count || rivals.size() != count || least.size() != count) {
        throw nb::value_error("forecasts, means, rivals and least must be equally long");
    }
    std::vector<Forecast*> own;
    std::vector<Weights> known;
    for (std::size_t i = 0; i < count; ++i) {
        own.push_back(nb::cast<Forecast*>(forecasts[i]));
        known.push_back(nb::cast<Weights>(means[i]));
        check_means(*own[i], known[i]);
        if (std::find(own.begin(), own.end() - 1, own[i]) != own.end() - 1) throw nb::value_error("give a forecast once");
    }
    std::vector<std::vector<std::int64_t>> chosen(count);
    {
        Unlocked unlocked;
        parallel(count, threads, [&](int, std::size_t i) {
            chosen[i] = own[i]->next(known[i].data(), rivals.data()[i], least.data()[i], most);
        });
    }
    nb::list found;
    for (const auto& each : chosen) found.append(numbers_of(each));
    return found;
}

Floats likeness_py(nb::sequence texts) {
    const Strings given(texts);
    const std::vector<float> found = likeness(given.texts);
    Floats table = make_floats(given.texts.size(), given.texts.size(), true);
    std::copy(found.begin(), found.end(), table.data());
    return table;
}

Numbers<std::int64_t> covering_order_py(nb::sequence texts) {
    const Strings given(texts);
    std::vector<std::int64_t> order;
    {
        Unlocked unlocked;
        order = covering_order(given.texts);
    }
    return numbers_of(order);
}

}  // namespace

void bind_forecast(nb::module_& module) {
    using namespace nb::literals;
    module.def("likeness", &likeness_py, "texts"_a);
    module.def("covering_order", &covering_order_py, "texts"_a);
    module.def("build_forecasts", &build_forecasts_py, "hypotheses"_a, "starters"_a, "threads"_a = 1);
    module.def("next_window", &next_window_py, "forecasts"_a, "means"_a, "rivals"_a, "least"_a, "most"_a, "threads"_a = 1);
    nb::class_<Forecast>(module, "Forecast")
        .def("__init__", &make_forecast, "texts"_a)
        .def("start", &start_py, "count"_a)
        .def("next", &next_py, "means"_a, "rival"_a, "least"_a, "most"_a);
}

}  // namespace mbrace
