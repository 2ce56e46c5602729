// Texts cut into words at single spaces, and a number for every distinct word: for tokenizers that treat words separately.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "distinct.hpp"
#include "text.hpp"

namespace mbrace {

class WordList {
  public:
    WordList() = default;
    WordList(const WordList&) = delete;  // it owns its copies

    std::size_t size() const { return words_.size(); }
    const Text& word(std::size_t number) const { return words_[number]; }

    // Appends the numbers of each text's words, at least one: the words joined by single spaces are the text. `counts` is how
    // many they are. Words that are known are looked up by several threads; then new ones get numbers, in the order of the texts.
    void number(const std::vector<Text>& texts, int threads, std::vector<std::int32_t>& numbers,
                std::vector<std::int64_t>& counts);

  private:
    std::int32_t add(const Text& word);

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
std::size_t token_starts(const std::vector<std::size_t>& first_words, const std::int32_t* numbers, const WordTokens& words,
                         std::size_t room, std::size_t around, std::vector<std::size_t>& starts);

// Some tokens, one after another.
struct TokenRange {
    const std::int32_t* data;
    std::size_t size;
};

// Writes the tokens of each text from its start on, with `before` and `after` around them, and how many they are.
void write_tokens(const std::vector<std::size_t>& first_words, const std::int32_t* numbers, const WordTokens& words,
                  const TokenRange& before, const TokenRange& after, const std::vector<std::size_t>& starts, int threads,
                  std::int32_t* tokens, std::int64_t* lengths);

}  // namespace mbrace
