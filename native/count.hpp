// The inner loop: one reference against up to 256 hypotheses at a time, in every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mbrace {

constexpr int ROWS = 256;             // hypotheses to a block
constexpr int LANES = 8;              // hypotheses whose scores are computed together
constexpr std::uint32_t PADDING = 16; // items of a reference come in multiples of this

// F-beta with (1 + beta^2) P R / (beta^2 P + R) = P R / (on_precision P + on_recall R): no overflow for a large beta.
struct Formula {
    float on_precision, on_recall;
    bool eps_smoothing;
    int orders;
};

// An item: which hypotheses of a block have it, a bit for each.
struct Column {
    std::uint64_t words[ROWS / 64];
};

// A block of hypotheses.
struct Rows {
    const Column* const* columns;  // [order][item]; item 0, none, is empty
    const std::uint32_t* items;    // [order]: how many columns there are; what comes later no hypothesis of the block has
    const float* lengths;          // [order][ROWS]: n-grams of each order
    const float* inverses;         // [order][ROWS]: 1 / length, 0 for 0
    const float* effective;        // [2][ROWS]: character and word orders with at least one n-gram
};

// A reference: its items by order, with any number of 0 (none) between them.
struct Reference {
    const std::uint32_t* const* items;  // [order]
    const std::uint32_t* counts;        // [order]: a multiple of PADDING
    const float* lengths;               // [order]
    const float* inverses;              // [order]
    const float* effective;             // [2]
    const std::uint32_t* largest;       // [order]: the largest item

    bool all_known(int n, std::uint32_t known) const { return largest[n] < known; }
};

// Writes scores[row] = 100 F of the reference and each hypothesis of the block, for rows 8 g to 8 g + 7 where bit g of
// `groups` is set.
using CountBlock = void (*)(const Formula&, const Rows&, const Reference&, std::uint32_t groups, float* scores);

void count_portable(const Formula&, const Rows&, const Reference&, std::uint32_t, float*);
void count_avx2(const Formula&, const Rows&, const Reference&, std::uint32_t, float*);
void count_avx512(const Formula&, const Rows&, const Reference&, std::uint32_t, float*);
void count_neon(const Formula&, const Rows&, const Reference&, std::uint32_t, float*);

struct Variant {
    const char* name;
    CountBlock count;
};

// The variants that this machine can run, best first.
std::size_t variants(const Variant** list);

}  // namespace mbrace
