// Texts cut into words at single spaces, and a number for every distinct word: for tokenizers that treat words separately.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "distinct.hpp"
#include "parallel.hpp"
#include "text.hpp"

namespace mbrace {

// Whether a space next to this code point may be a cut: a printable ASCII character, a Latin or Cyrillic letter, an
// ideograph or a syllable. None of them is whitespace, joins with a space, or becomes one when a text is normalised.
inline bool may_border_cut(std::uint32_t c) {
    return (c > 0x20 && c < 0x7F) || (c >= 0xC0 && c < 0x250) || (c >= 0x400 && c < 0x482) || (c >= 0x48A && c < 0x530) ||
           (c >= 0x4E00 && c < 0xA000) || (c >= 0xAC00 && c < 0xD7A4);
}

class WordList {
  public:
    WordList() = default;
    WordList(const WordList&) = delete;  // it owns its copies

    std::size_t size() const { return words_.size(); }
    const Text& word(std::size_t number) const { return words_[number]; }

    // Appends the numbers of each text's words, at least one: the words joined by single spaces are the text. `counts` is how
    // many they are. Words that are known are looked up by several threads; then new ones get numbers, in the order of the texts.
    void number(const std::vector<Text>& texts, int threads, std::vector<std::int32_t>& numbers,
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

  private:
    template <class Take>
    static void for_each_word(const Text& text, Take take) {
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

    std::int32_t add(const Text& word) {
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

    Distinct distinct_;
    std::vector<Text> words_;
    std::vector<std::unique_ptr<char[]>> copies_;
};

// What words are made of, by their numbers: `size` tokens from `begin` on among `ids`.
struct WordTokens {
    const std::int32_t* ids;
    const std::int64_t* begin;
    const std::int64_t* size;
};

// Sets `starts`, (texts + 1): where the tokens of each text begin, and where those of the last end. A text has up to `room`
// tokens of its words and `around` others; returns how many texts would have more and are cut.
inline std::size_t token_starts(const std::vector<std::size_t>& first_words, const std::int32_t* numbers,
                                const WordTokens& words, std::size_t room, std::size_t around,
                                std::vector<std::size_t>& starts) {
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

}  // namespace mbrace
