// What Python sees of attention to the past.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "attend.hpp"
#include "python.hpp"

namespace mbrace {
namespace {

using Newest = nb::ndarray<const float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Past = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using RowAt = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Floats attend_py(const Newest& newest, const Past& keys, const Past& values, const RowAt& row_at, std::size_t time,
                 int threads) {
    const std::size_t rows = newest.shape(0), heads = newest.shape(2), size = newest.shape(3), capacity = keys.shape(1);
    for (int axis = 0; axis < 4; ++axis) {
        if (keys.shape(axis) != values.shape(axis)) throw nb::value_error("keys and values: of different shapes");
    }
    if (newest.shape(1) != 3 || heads < 1 || size < 1 || keys.shape(2) != heads || keys.shape(3) != size) {
        throw nb::value_error("newest must be (rows, 3, heads, size), and keys (room, capacity, heads, size)");
    }
    if (rows > capacity || rows > row_at.shape(1)) throw nb::value_error("newest: more rows than there is room for");
    if (time >= keys.shape(0) || time > row_at.shape(0)) throw nb::value_error("time: there is no room for it");
    Floats out = make_floats(rows, heads * size, true);
    const AttendAsk ask{newest.data(), keys.data(), values.data(), row_at.data(), out.data(),     rows,
                        heads,         size,        time,          capacity,      row_at.shape(1)};
    if (!rows_exist(ask)) throw nb::index_error("row_at: a row for which there is no room");
    {
        Unlocked release;
        attend(ask, threads);
    }
    return out;
}

}  // namespace

void bind_attend(nb::module_& module) {
    using namespace nb::literals;
    module.def("attend", &attend_py, "newest"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(),
               "row_at"_a.noconvert(), "time"_a, "threads"_a = 1);
}

}  // namespace mbrace
