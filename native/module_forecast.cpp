// What Python sees of the forecast that lets hypotheses into a race, and of likeness.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "cover.hpp"
#include "forecast.hpp"
#include "python.hpp"

namespace mbrace {
namespace {

void make_forecast(Forecast* self, nb::sequence texts) {
    const Strings given(texts);
    nb::gil_scoped_release unlocked;
    new (self) Forecast(given.texts);
}

Numbers<std::int64_t> start_py(Forecast& forecast, std::size_t count) {
    if (forecast.entered()) throw nb::value_error("the first hypotheses are in already");
    std::vector<std::int64_t> chosen;
    {
        nb::gil_scoped_release unlocked;
        chosen = forecast.start(count);
    }
    return numbers_of(chosen);
}

Numbers<std::int64_t> next_py(Forecast& forecast, const Weights& means, double rival, double least, std::size_t most) {
    if (means.size() != forecast.entered()) throw nb::value_error("give the mean of each hypothesis that entered");
    std::vector<std::int64_t> chosen;
    {
        nb::gil_scoped_release unlocked;
        chosen = forecast.next(means.data(), rival, least, most);
    }
    return numbers_of(chosen);
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
        nb::gil_scoped_release unlocked;
        order = covering_order(given.texts);
    }
    return numbers_of(order);
}

}  // namespace

void bind_forecast(nb::module_& module) {
    using namespace nb::literals;
    module.def("likeness", &likeness_py, "texts"_a);
    module.def("covering_order", &covering_order_py, "texts"_a);
    nb::class_<Forecast>(module, "Forecast")
        .def("__init__", &make_forecast, "texts"_a)
        .def("start", &start_py, "count"_a)
        .def("next", &next_py, "means"_a, "rival"_a, "least"_a, "most"_a);
}

}  // namespace mbrace
