#include "word_list.hpp"

#include <algorithm>
#include <cstring>

#include "parallel.hpp"

namespace mbrace {
namespace {

// Whether a space next to this code point may be a cut: a printable ASCII character, a Latin or Cyrillic letter, an
// ideograph or a syllable. None of them is whitespace, joins with a space, or becomes one when a text is normalised.
bool may_border_cut(std::uint32_t c) {
    return (c > 0x20 && c < 0x7F) || (c >= 0xC0 && c < 0x250) || (c >= 0x400 && c < 0x482) || (c >= 0x48A && c < 0x530) ||
           (c >= 0x4E00 && c < 0xA000) || (c >= 0xAC00 && c < 0xD7A4);
}

template <class Take>
void for_each_word(const Text& text, Take take) {
    with_points(text, [&](const auto* points) {
        std::size_t begin = 0;
        for (std::size_t at = 1; at + 1 < text.length; ++at) {
            if (points[at] != ' ' || !may_border_cut(points[at - 1]) || !may_border_cut(points[at + 1])) continue;
            take({points + begin, at - begin, text.kind});
            begin = at + 1;
        }
        take({points + begin, text.length - begin, text.kind});
    });
}

}  // namespace

void WordList::number(const std::vector<Text>& texts, int threads, std::vector<std::int32_t>& numbers,
                      std::vector<std::int64_t>& counts) {
    static constexpr std::size_t AT_ONCE = 512;  // texts per task
    struct Part {
        std::vector<std::int32_t> numbers;
        bool all_known = true;
    };
    std::vector<Part> parts((texts.size() + AT_ONCE - 1) / AT_ONCE);
    counts.resize(texts.size());
    parallel(parts.size(), threads, [&](int, std::size_t task) {
        Part& part = parts[task];
        for (std::size_t i = task * AT_ONCE; i < std::min(texts.size(), (task + 1) * AT_ONCE); ++i) {
            const std::size_t before = part.numbers.size();
            for_each_word(texts[i], [&](const Text& word) {
                const std::size_t number = distinct_.find(word);
                part.all_known &= number != Distinct::NONE;
                part.numbers.push_back(static_cast<std::int32_t>(number));
            });
            counts[i] = static_cast<std::int64_t>(part.numbers.size() - before);
        }
    });
    for (std::size_t task = 0; task < parts.size(); ++task) {
        if (parts[task].all_known) {
            numbers.insert(numbers.end(), parts[task].numbers.begin(), parts[task].numbers.end());
            continue;
        }
        for (std::size_t i = task * AT_ONCE; i < std::min(texts.size(), (task + 1) * AT_ONCE); ++i) {
            for_each_word(texts[i], [&](const Text& word) { numbers.push_back(add(word)); });
        }
    }
}

std::int32_t WordList::add(const Text& word) {
    const std::size_t number = distinct_.add(word);
    if (number == words_.size()) {  // new: a copy that outlives the text
        const std::size_t bytes = word.length * static_cast<std::size_t>(word.kind);
        copies_.emplace_back(new char[bytes + 1]);
        if (bytes > 0) std::memcpy(copies_.back().get(), word.data, bytes);
        words_.push_back({copies_.back().get(), word.length, word.kind});
        distinct_.move_last(copies_.back().get());
    }
    return static_cast<std::int32_t>(number);
}

std::size_t token_starts(const std::vector<std::size_t>& first_words, const std::int32_t* numbers, const WordTokens& words,
                         std::size_t room, std::size_t around, std::vector<std::size_t>& starts) {
    std::size_t cut = 0;
    starts.assign(1, 0);
    for (std::size_t text = 0; text + 1 < first_words.size(); ++text) {
        std::size_t own = 0;
        for (std::size_t at = first_words[text]; at < first_words[text + 1]; ++at) {
            own += static_cast<std::size_t>(words.size[numbers[at]]);
        }
        cut += own > room;
        starts.push_back(starts.back() + std::min(own, room) + around);
    }
    return cut;
}

void write_tokens(const std::vector<std::size_t>& first_words, const std::int32_t* numbers, const WordTokens& words,
                  const TokenRange& before, const TokenRange& after, const std::vector<std::size_t>& starts, int threads,
                  std::int32_t* tokens, std::int64_t* lengths) {
    static constexpr std::size_t AT_ONCE = 1024;  // texts per task
    const std::size_t texts = first_words.size() - 1, around = before.size + after.size;
    parallel((texts + AT_ONCE - 1) / AT_ONCE, threads, [&](int, std::size_t task) {
        for (std::size_t i = task * AT_ONCE; i < std::min(texts, (task + 1) * AT_ONCE); ++i) {
            std::int32_t* to = std::copy_n(before.data, before.size, tokens + starts[i]);
            lengths[i] = static_cast<std::int64_t>(starts[i + 1] - starts[i]);
            std::size_t left = starts[i + 1] - starts[i] - around;
            for (std::size_t at = first_words[i]; left > 0; ++at) {
                const std::int32_t word = numbers[at];
                const std::size_t own = std::min(left, static_cast<std::size_t>(words.size[word]));
                to = std::copy_n(words.ids + words.begin[word], own, to);
                left -= own;
            }
            std::copy_n(after.data, after.size, to);
        }
    });
}

}  // namespace mbrace
