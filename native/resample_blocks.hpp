// Bootstrap resamples in blocks of 64, and the innermost loop of the bootstrap: a hypothesis' total in each of the 64.
//
// A resample is stored as counts: how often each draw is in it. A hypothesis' total is the sum over the draws of the count
// times the hypothesis' difference from its rival. Counts and differences (rounded, see differences.hpp) are 16-bit
// integers, two draws in each 32-bit word, and totals fit 32 bits. Sums of integers are exact, so every instruction set
// finds the same totals.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mbrace {

enum class WinsVariant { best, portable };  // instruction sets; both give the same numbers of wins

constexpr std::size_t BLOCK_RESAMPLES = 64;  // resamples whose counts are stored together
constexpr std::size_t GROUP_ROWS = 4;        // hypotheses at a time: each block of counts is loaded once for all of them

// The index, within a block, of the count of draw r in its resample `lane`: pairs of draws, and for each pair the 64
// resamples: [r / 2][lane][r % 2].
inline std::size_t count_index(std::size_t r, std::size_t lane) { return (r / 2 * BLOCK_RESAMPLES + lane) * 2 + r % 2; }

// The resamples of a block, one bit each, in which a hypothesis' total is above the margin, or below minus the margin:
// certain wins and certain losses.
struct Certain {
    std::uint64_t above, below;
};
static_assert(BLOCK_RESAMPLES == 64);

// Finds the certain wins and losses of GROUP_ROWS hypotheses at once. rows: the differences of each, a word per pair of
// draws.
using Compare = void (*)(const std::int32_t* const* rows, std::size_t pairs, const std::int16_t* block, std::int32_t margin,
                         Certain* certain);

Compare compare_of(WinsVariant variant);

// The totals themselves, of one hypothesis, (BLOCK_RESAMPLES,).
void block_totals(const std::int32_t* row, std::size_t pairs, const std::int16_t* block, std::int32_t* totals);

}  // namespace mbrace
