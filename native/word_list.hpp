// Texts cut into words at single spaces, and a number for every distinct word: for tokenizers that read words apart.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "distinct.hpp"
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

    // Appends the numbers of a text's words, at least one: the words joined by single spaces are the text.
    void number(const Text& text, std::vector<std::int32_t>& numbers) {
        with_points(text, [&](const auto* points) {
            std::size_t begin = 0;
            for (std::size_t at = 1; at + 1 < text.length; ++at) {
                if (points[at] != ' ' || !may_border_cut(points[at - 1]) || !may_border_cut(points[at + 1])) continue;
                numbers.push_back(add({points + begin, at - begin, text.kind}));
                begin = at + 1;
            }
            numbers.push_back(add({points + begin, text.length - begin, text.kind}));
        });
    }

  private:
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

}  // namespace mbrace
