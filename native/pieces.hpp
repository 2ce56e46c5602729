// Ids of a model's output to text, as SentencePiece does it: the pieces one after another, "▁" for a space; a run of pieces that
// stand for one byte each is UTF-8, in which every byte that is part of no character becomes U+FFFD. Whitespace around the text
// is left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mbrace {

class Pieces {
  public:
    static constexpr std::int32_t NO_BYTE = -1;

    // `texts` (UTF-8) are what each id writes, empty for an id that writes nothing; `bytes` the byte that it stands for.
    Pieces(std::vector<std::string> texts, std::vector<std::int32_t> bytes);

    // The text of `count` ids. Ids that there are not, such as -1, write nothing.
    std::string text(const std::int32_t* ids, std::size_t count) const;

    // The texts of rows of ids, (rows, width): each distinct row is turned into text once, and `numbers` says which text is
    // that of each row.
    std::vector<std::string> texts(const std::int32_t* ids, std::size_t rows, std::size_t width, int threads,
                                   std::vector<std::size_t>& numbers) const;

  private:
    std::vector<std::string> texts_;
    std::vector<std::int32_t> bytes_;
};

}  // namespace mbrace
