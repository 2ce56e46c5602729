// What Python sees of texts themselves: distinct ones, and numbers for their words.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>

#include "distinct.hpp"
#include "python.hpp"
#include "word_list.hpp"

namespace mbrace {
namespace {

nb::list distinct_py(nb::handle texts) {
    const Strings given(texts);
    Distinct distinct;
    nb::list first_copies;
    for (std::size_t i = 0; i < given.texts.size(); ++i) {
        if (distinct.add(given.texts[i]) == nb::len(first_copies)) first_copies.append(given.owner[i]);
    }
    return first_copies;
}

nb::tuple word_numbers_py(WordList& words, nb::sequence texts) {
    const Strings given(texts);
    const std::size_t known = words.size();
    std::vector<std::int32_t> numbers;
    std::vector<std::int64_t> counts;
    counts.reserve(given.texts.size());
    {
        nb::gil_scoped_release unlocked;
        for (const Text& text : given.texts) {
            const std::size_t before = numbers.size();
            words.number(text, numbers);
            counts.push_back(static_cast<std::int64_t>(numbers.size() - before));
        }
    }
    nb::list added;
    for (std::size_t number = known; number < words.size(); ++number) {
        const Text& word = words.word(number);
        added.append(nb::steal(PyUnicode_FromKindAndData(word.kind, word.data, static_cast<Py_ssize_t>(word.length))));
    }
    auto flat = make_table<std::int32_t>(numbers.size(), 1, false);
    std::copy(numbers.begin(), numbers.end(), flat.data());
    return nb::make_tuple(flat, numbers_of(counts), added);
}

}  // namespace

void bind_texts(nb::module_& module) {
    using namespace nb::literals;
    module.def("distinct", &distinct_py, "texts"_a);
    nb::class_<WordList>(module, "WordList")
        .def(nb::init<>())
        .def("__len__", &WordList::size)
        .def("numbers", &word_numbers_py, "texts"_a);
}

}  // namespace mbrace
