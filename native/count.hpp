// The inner loop: eight references at a time against many hypotheses, in every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mbrace {

constexpr int LANES = 8;  // references to a block: one 512-bit vector holds the same 64-bit word of all eight

// F-beta with (1 + beta^2) P R / (beta^2 P + R) = P R / (on_precision P + on_recall R): no overflow for a large beta.
struct Formula {
    float on_precision, on_recall;
    bool eps_smoothing;
    int orders;
};

// Hypotheses: rows of 64-bit words, all orders in a row.
struct Rows {
    const std::uint64_t* words;
    std::size_t stride;
    const std::uint32_t* ends;  // [row][orders]: the row has nothing of the order in this word of the row and beyond
    const float* lengths;    // [row][orders]: n-grams of each order
    const float* inverses;   // [row][orders]: 1 / length, 0 for 0
    const float* effective;  // [row][2]: character and word orders with at least one n-gram
};

// Eight references, word by word; only words in which one of them has an item.
struct Block {
    const std::uint64_t* words;   // [position][LANES]
    const std::uint32_t* places;  // [position]: which word of a row
    const std::uint32_t* begins;  // [orders + 1]: the positions of each order
    const std::uint32_t* ranks;   // [word of a row]: how many positions are of words before it
    const float* lengths;         // [orders][LANES]
    const float* inverses;        // [orders][LANES]
    const float* effective;       // [2][LANES]
    const std::uint16_t* rare;    // [row][orders][LANES]: matches of rare items, counted apart; null if there are none
    int lanes;                    // how many of the eight are there
};

// Writes scores[i * scores_stride + lane] = 100 F of hypothesis chosen[i] and the reference of the lane.
using CountBlock = void (*)(const Formula&, const Rows&, const Block&, const std::int64_t* chosen, std::size_t count,
                            float* scores, std::size_t scores_stride);

void count_portable(const Formula&, const Rows&, const Block&, const std::int64_t*, std::size_t, float*, std::size_t);
void count_avx2(const Formula&, const Rows&, const Block&, const std::int64_t*, std::size_t, float*, std::size_t);
void count_avx512(const Formula&, const Rows&, const Block&, const std::int64_t*, std::size_t, float*, std::size_t);
void count_neon(const Formula&, const Rows&, const Block&, const std::int64_t*, std::size_t, float*, std::size_t);

struct Variant {
    const char* name;
    CountBlock count;
};

// The variants that this machine can run, best first.
std::size_t variants(const Variant** list);

}  // namespace mbrace
