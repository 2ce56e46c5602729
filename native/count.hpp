// The inner loop: one reference against up to 256 hypotheses at a time, in every instruction set.
//
// Where a race is down to 32 hypotheses or fewer, a column has a byte instead of a bit for each of them: then adding
// columns up is adding bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mbrace {

constexpr int ROWS = 256;              // hypotheses to a block
constexpr int FEW = ROWS / 8;          // hypotheses that have a byte of a column each
constexpr int LANES = 8;               // hypotheses whose scores are computed together
constexpr std::uint32_t PADDING = 16;  // items of a reference come in multiples of this

// F-beta with (1 + beta^2) P R / (beta^2 P + R) = P R / (on_precision P + on_recall R): no overflow for a large beta.
struct Formula {
    float on_precision, on_recall;
    bool eps_smoothing;
    int orders;
};

// An item: which hypotheses of a block have it, a bit for each (or a byte, 0 or 1).
struct Column {
    std::uint64_t words[ROWS / 64];
};

// A block of hypotheses: `rows` of them, ROWS or FEW.
struct Rows {
    const Column* const* columns;  // [order][item]; item 0, none, is empty
    const std::uint32_t* items;    // [order]: how many columns there are; what comes later no hypothesis of the block has
    const float* lengths;          // [order][rows]: n-grams of each order
    const float* inverses;         // [order][rows]: 1 / length, 0 for 0
    const float* effective;        // [2][rows]: character and word orders with at least one n-gram
};

// A reference: its items by order, with any number of 0 (none) between them.
struct Reference {
    const std::uint32_t* const* items;  // [order]
    const std::uint32_t* counts;        // [order]: a multiple of PADDING
    const float* lengths;               // [order]
    const float* inverses;              // [order]
    const float* effective;             // [2]
    const std::uint32_t* largest;       // [order]: the largest item
};

// Writes scores[row] = 100 F of the reference and each hypothesis of the block, for rows 8 g to 8 g + 7 where bit g of
// `groups` is set.
using Count = void (*)(const Formula&, const Rows&, const Reference&, std::uint32_t groups, float* scores);

// Bits to bytes: byte i of few[item] becomes bit rows[i] of columns[item], for each of the `items` columns. A row of ROWS
// leaves its byte as it is.
using Spread = void (*)(const Column* columns, std::size_t items, const std::uint16_t* rows, Column* few);

struct Variant {
    const char* name;
    Count count, count_few;  // blocks of ROWS, with a bit for each; of FEW, with a byte
    Spread spread;
};

extern const Variant portable_variant, avx2_variant, avx512_variant, neon_variant;

// The variants that this machine can run, best first.
const std::vector<const Variant*>& variants();

}  // namespace mbrace
