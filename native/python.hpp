// What the files that know Python share: strings in, NumPy arrays out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "count.hpp"
#include "index.hpp"
#include "pool.hpp"
#include "text.hpp"

namespace mbrace {

namespace nb = nanobind;

using Floats = nb::ndarray<nb::numpy, float, nb::c_contig>;
using Integers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Weights = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Number>
using Numbers = nb::ndarray<nb::numpy, Number, nb::ndim<1>, nb::c_contig>;

// Strings whose buffers stay alive while the lock is released: the tuple owns them even if the caller's list changes.
struct Strings {
    nb::tuple owner;
    std::vector<Text> texts;

    explicit Strings(nb::handle sequence) : owner(nb::steal<nb::tuple>(PySequence_Tuple(sequence.ptr()))) {
        if (!owner.is_valid()) throw nb::python_error();
        texts.reserve(nb::len(owner));
        for (nb::handle item : owner) {
            PyObject* string = item.ptr();
            if (!PyUnicode_Check(string)) throw nb::type_error("expected a sequence of str");
            const Py_ssize_t length = PyUnicode_GET_LENGTH(string);
            if (length > std::numeric_limits<std::int32_t>::max()) throw nb::value_error("a string is too long");
            const auto kind = static_cast<int>(PyUnicode_KIND(string));
            texts.push_back({PyUnicode_DATA(string), static_cast<std::size_t>(length), kind});
        }
    }
};

// A new array whose values are not set: the caller writes all of them.
template <class Number>
nb::ndarray<nb::numpy, Number, nb::c_contig> make_table(std::size_t rows, std::size_t columns, bool matrix) {
    auto* table = new UnsetVector<Number>(rows * columns);
    nb::capsule owner(table, [](void* p) noexcept { delete static_cast<UnsetVector<Number>*>(p); });
    std::size_t shape[2] = {rows, columns};
    return {table->data(), matrix ? std::size_t{2} : std::size_t{1}, shape, owner};
}

inline Floats make_floats(std::size_t rows, std::size_t columns, bool matrix) {
    return make_table<float>(rows, columns, matrix);
}

template <class Number>
Numbers<Number> make_numbers(std::size_t size) {
    auto* numbers = new Number[std::max<std::size_t>(size, 1)];
    nb::capsule owner(numbers, [](void* p) noexcept { delete[] static_cast<Number*>(p); });
    std::size_t shape[1] = {size};
    return Numbers<Number>(numbers, 1, shape, owner);
}

template <class Number>
Numbers<Number> numbers_of(const std::vector<Number>& values) {
    Numbers<Number> numbers = make_numbers<Number>(values.size());
    std::copy(values.begin(), values.end(), numbers.data());
    return numbers;
}

inline const Variant& variant_of(const std::string& simd) {
    if (simd.empty() || simd == "auto") return *variants()[0];
    std::string known = "auto";
    for (const Variant* variant : variants()) {
        if (simd == variant->name) return *variant;
        known += std::string(", ") + variant->name;
    }
    throw std::invalid_argument("simd '" + simd + "' is not available on this machine; choose one of: " + known);
}

inline Formula formula_of(const Options& options, double beta, bool eps_smoothing) {
    if (!(beta >= 0)) throw nb::value_error("beta must be a number of at least 0");
    const double on_recall = 1 / (1 + beta * beta);
    return {static_cast<float>(1 - on_recall), static_cast<float>(on_recall), eps_smoothing, options.orders()};
}

// The index of sentence `at`, and its formula, which must have as many orders as those of the sentences before.
inline const Index& index_at(const nb::list& indexes, std::size_t at, double beta, bool eps_smoothing, Formula& formula) {
    const Index* index = nb::cast<const Index*>(indexes[at]);
    const Formula own = formula_of(index->options(), beta, eps_smoothing);
    if (at && own.orders != formula.orders) throw nb::value_error("the indexes have different orders");
    formula = own;
    return *index;
}

inline void check_survivors(const Integers& rows, const Index& index) {
    for (std::size_t k = 0; k < rows.size(); ++k) {
        if (rows.data()[k] < 0 || static_cast<std::size_t>(rows.data()[k]) >= index.size()) {
            throw nb::index_error("a survivor is not in the index");
        }
    }
}

void bind_chrf(nb::module_& module);        // module_chrf.cpp
void bind_bleu(nb::module_& module);        // module_bleu.cpp
void bind_attend(nb::module_& module);      // module_attend.cpp
void bind_race(nb::module_& module);        // module_race.cpp
void bind_forecast(nb::module_& module);    // module_forecast.cpp
void bind_texts(nb::module_& module);       // module_texts.cpp
void bind_whole_race(nb::module_& module);  // module_whole_race.cpp

}  // namespace mbrace
