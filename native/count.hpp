// The inner loop: one reference against up to 256 hypotheses at a time, in every instruction set.
//
// When 32 hypotheses or fewer are left in a race, a column has a byte instead of a bit for each: then columns are added up
// by adding bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbrace {

constexpr int ROWS = 256;                   // hypotheses per block, a bit of a column each
constexpr int FEW_ROWS = ROWS / 8;          // hypotheses per block where each has a byte of a column
constexpr int LANES = 8;                    // hypotheses whose scores are computed together
constexpr std::uint32_t ITEM_PADDING = 16;  // the item lists of a reference are filled up with 0 to a multiple of this

// F-beta with (1 + beta^2) P R / (beta^2 P + R) = P R / (on_precision P + on_recall R): no overflow for a large beta.
struct Formula {
    float on_precision, on_recall;
    bool eps_smoothing;
    int orders;
};

// Which hypotheses of a block have an item: a bit for each, or a byte that is 0 or 1.
struct Column {
    std::uint64_t words[ROWS / 64];
};

// A block of hypotheses; `rows` below is ROWS or FEW_ROWS.
struct Rows {
    const Column* const* columns;  // [order][item]; column 0 is empty
    const std::uint32_t* items;    // [order]: the number of columns; no hypothesis of the block has a later item
    const float* lengths;          // [order][rows]: n-grams of each order
    const float* inverses;         // [order][rows]: 1 / length, 0 for 0
    const float* effective;        // [2][rows]: character and word orders with at least one n-gram
};

// A reference: its items by order, with any number of zeros between them.
struct Reference {
    const std::uint32_t* const* items;  // [order]
    const std::uint32_t* counts;        // [order]: a multiple of ITEM_PADDING
    const float* lengths;               // [order]
    const float* inverses;              // [order]
    const float* effective;             // [2]
    const std::uint32_t* largest;       // [order]: the largest item
};

// Writes scores[row] = 100 F of the reference and each hypothesis of the block, for rows 8 g to 8 g + 7 where bit g of
// `groups` is set.
using Count = void (*)(const Formula&, const Rows&, const Reference&, std::uint32_t groups, float* scores);

// From bits to bytes: byte i of few[item] becomes bit rows[i] of columns[item], for each of the `items` columns. Where
// rows[i] is ROWS, byte i is left unchanged.
using Spread = void (*)(const Column* columns, std::size_t items, const std::uint16_t* rows, Column* few);

struct Variant {
    const char* name;
    Count count, count_few;  // for blocks of ROWS hypotheses, a bit each; of FEW_ROWS, a byte each
    Spread spread;
};

extern const Variant portable_variant, avx2_variant, avx512_variant, neon_variant;

// The variants that this machine can run, best first.
const std::vector<const Variant*>& variants();

}  // namespace mbrace
