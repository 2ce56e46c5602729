// What Python sees of texts themselves: distinct ones, numbers for their words, and texts of ids.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>

#include "distinct.hpp"
#include "pieces.hpp"
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

nb::tuple word_numbers_py(WordList& words, nb::sequence texts, int threads) {
    const Strings given(texts);
    const std::size_t known = words.size();
    std::vector<std::int32_t> numbers;
    std::vector<std::int64_t> counts;
    {
        Unlocked unlocked;
        words.number(given.texts, threads, numbers, counts);
    }
    nb::list added;
    for (std::size_t number = known; number < words.size(); ++number) {
        added.append(string_of(words.word(number)));
    }
    auto flat = make_table<std::int32_t>(numbers.size(), 1, false);
    std::copy(numbers.begin(), numbers.end(), flat.data());
    return nb::make_tuple(flat, numbers_of(counts), added);
}

using Tokens = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The tokens of texts whose words have numbers, one text after another, with the tokens `before` and `after` around each.
nb::tuple join_words_py(const Tokens& numbers, const Integers& counts, const Tokens& ids, const Integers& begin,
                        const Integers& size, const Tokens& before, const Tokens& after, std::size_t room, int threads) {
    const std::size_t texts = counts.size(), around = before.size() + after.size();
    std::vector<std::size_t> first_words(1, 0), starts;
    for (std::size_t i = 0; i < texts; ++i) {
        if (counts.data()[i] < 0) throw nb::value_error("a text has no negative number of words");
        first_words.push_back(first_words.back() + static_cast<std::size_t>(counts.data()[i]));
    }
    if (first_words.back() != numbers.size()) throw nb::value_error("give as many numbers as there are words");
    if (begin.size() != size.size()) throw nb::value_error("begin and size must be equally long");
    for (std::size_t i = 0; i < size.size(); ++i) {
        const std::int64_t own = size.data()[i], from = begin.data()[i], all = static_cast<std::int64_t>(ids.size());
        // (a word of negative size is in no text)
        if (own > 0 && (from < 0 || own > all || from > all - own))
            throw nb::index_error("a word has tokens that there are not");
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::int32_t number = numbers.data()[i];
        if (number < 0 || static_cast<std::size_t>(number) >= size.size() || size.data()[number] < 0) {
            throw nb::index_error("a word has no tokens");
        }
    }
    const WordTokens words{ids.data(), begin.data(), size.data()};
    std::size_t cut;
    {
        Unlocked unlocked;
        cut = token_starts(first_words, numbers.data(), words, room, around, starts);
    }
    auto flat = make_table<std::int32_t>(starts.back(), 1, false);
    Numbers<std::int64_t> lengths = make_numbers<std::int64_t>(texts);
    {
        Unlocked unlocked;
        write_tokens(first_words, numbers.data(), words, {before.data(), before.size()}, {after.data(), after.size()},
                     starts, threads, flat.data(), lengths.data());
    }
    return nb::make_tuple(flat, lengths, cut);
}

using Ids = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void make_pieces(Pieces* self, nb::sequence texts, nb::sequence bytes) {
    std::vector<std::string> written;
    std::vector<std::int32_t> numbers;
    for (nb::handle text : texts) {
        Py_ssize_t length = 0;
        const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
        if (!data) throw nb::python_error();
        written.emplace_back(data, static_cast<std::size_t>(length));
    }
    for (nb::handle byte : bytes) numbers.push_back(nb::cast<std::int32_t>(byte));
    new (self) Pieces(std::move(written), std::move(numbers));
}

// Equal rows share one string.
nb::list piece_texts_py(const Pieces& pieces, const Ids& ids, int threads) {
    std::vector<std::size_t> number_of;
    std::vector<std::string> found;
    {
        Unlocked unlocked;
        found = pieces.texts(ids.data(), ids.shape(0), ids.shape(1), threads, number_of);
    }
    std::vector<nb::object> strings;
    strings.reserve(found.size());
    for (const std::string& text : found) {
        strings.push_back(nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr)));
        if (!strings.back().is_valid()) throw nb::python_error();
    }
    nb::list out;
    for (const std::size_t number : number_of) out.append(strings[number]);
    return out;
}

}  // namespace

void bind_texts(nb::module_& module) {
    using namespace nb::literals;
    module.def("distinct", &distinct_py, "texts"_a);
    nb::class_<WordList>(module, "WordList")
        .def(nb::init<>())
        .def("__len__", &WordList::size)
        .def("numbers", &word_numbers_py, "texts"_a, "threads"_a = 1);
    module.def("join_words", &join_words_py, "numbers"_a, "counts"_a, "ids"_a, "begin"_a, "size"_a, "before"_a, "after"_a,
               "room"_a, "threads"_a = 1);
    nb::class_<Pieces>(module, "Pieces")
        .def("__init__", &make_pieces, "texts"_a, "bytes"_a)
        .def("texts", &piece_texts_py, "ids"_a, "threads"_a = 1);
}

}  // namespace mbrace
