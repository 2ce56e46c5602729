// What the files that know Python share: strings in, NumPy arrays out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "count.hpp"
#include "index.hpp"
#include "pool.hpp"
#include "text.hpp"
#include "unlocked.hpp"

namespace mbrace {

namespace nb = nanobind;

using Floats = nb::ndarray<nb::numpy, float, nb::c_contig>;
using Integers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Weights = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Number>
using Numbers = nb::ndarray<nb::numpy, Number, nb::ndim<1>, nb::c_contig>;

// Strings whose buffers stay alive while the lock is released, even if the caller's list changes.
struct Strings {
    nb::tuple owner;
    std::vector<Text> texts;

    explicit Strings(nb::handle sequence) : owner(nb::steal<nb::tuple>(PySequence_Tuple(sequence.ptr()))) {
        if (!owner.is_valid()) throw nb::python_error();
        texts.reserve(nb::len(owner));
        for (nb::handle item : owner) {
            if (!PyUnicode_Check(item.ptr())) throw nb::type_error("expected a sequence of str");
            const Py_ssize_t length = PyUnicode_GetLength(item.ptr());
            if (length > std::numeric_limits<std::int32_t>::max()) throw nb::value_error("a string is too long");
            texts.push_back(read(item.ptr(), static_cast<std::size_t>(length)));
        }
    }

#if !defined(Py_LIMITED_API)
    // What keeps the buffer of a string alive.
    nb::handle buffer(std::size_t i) const { return owner[i]; }

  private:
    static Text read(PyObject* string, std::size_t length) {
        return {PyUnicode_DATA(string), length, static_cast<int>(PyUnicode_KIND(string))};
    }
#else  // the stable ABI hides how a string is stored, so these are copies in Python's layouts
    nb::handle buffer(std::size_t) const { return copies_; }

  private:
    using Chunks = std::vector<std::unique_ptr<char[]>>;

    Text read(PyObject* string, std::size_t length) {
        if (!copies_.is_valid()) {
            chunks_ = new Chunks;
            copies_ = nb::capsule(chunks_, [](void* p) noexcept { delete static_cast<Chunks*>(p); });
        }
        if (points_.size() <= length) points_.resize(2 * length + 1);
        if (!PyUnicode_AsUCS4(string, points_.data(), static_cast<Py_ssize_t>(points_.size()), 1)) throw nb::python_error();
        const int kind = kind_of(points_.data(), length);
        const std::size_t bytes = (length * static_cast<std::size_t>(kind) + 3) / 4 * 4;
        if (bytes > left_) {
            left_ = std::max(bytes, CHUNK);
            chunks_->emplace_back(new char[left_]);
            next_ = chunks_->back().get();
        }
        void* copy = next_;
        narrow(points_.data(), length, kind, copy);
        next_ += bytes, left_ -= bytes;
        return {copy, length, kind};
    }

    static constexpr std::size_t CHUNK = std::size_t{1} << 14;
    nb::capsule copies_;  // owns the chunks
    Chunks* chunks_ = nullptr;
    char* next_ = nullptr;
    std::size_t left_ = 0;
    std::vector<std::uint32_t> points_;
#endif
};

// A text as a Python string.
inline nb::object string_of(const Text& text) {
    std::vector<std::uint32_t> points;
    with_points(text, [&](const auto* units) { points.assign(units, units + text.length); });
    const auto bytes = static_cast<Py_ssize_t>(text.length * sizeof(std::uint32_t));
    int order = std::endian::native == std::endian::little ? -1 : 1;
    return nb::steal(PyUnicode_DecodeUTF32(reinterpret_cast<const char*>(points.data()), bytes, "surrogatepass", &order));
}

// Memory of an array that Python sees, from the pool.
struct Block {
    std::size_t bytes;
    void* data;

    explicit Block(std::size_t bytes) : bytes(bytes), data(Pool::take(bytes)) {}
    ~Block() { Pool::give(data, bytes); }
};

// A new array whose values are not set: the caller writes all of them.
template <class Number>
nb::ndarray<nb::numpy, Number, nb::c_contig> make_table(std::size_t rows, std::size_t columns, bool matrix) {
    auto* block = new Block(rows * columns * sizeof(Number));
    nb::capsule owner(block, [](void* p) noexcept { delete static_cast<Block*>(p); });
    std::size_t shape[2] = {rows, columns};
    return {static_cast<Number*>(block->data), matrix ? std::size_t{2} : std::size_t{1}, shape, owner};
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
