// Bootstrap resamples as counts: row b says how often each distinct pseudo-reference was drawn in resample b.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mbrace {

// xoshiro256** (Blackman and Vigna), seeded through splitmix64: the same numbers on every platform.
class Random {
  public:
    explicit Random(std::uint64_t seed) {
        for (std::uint64_t& word : state_) {
            seed += 0x9E3779B97F4A7C15ull;
            std::uint64_t z = seed;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
            word = z ^ (z >> 31);
        }
    }

    std::uint64_t next() {
        const std::uint64_t result = rotate(state_[1] * 5, 7) * 9;
        const std::uint64_t shifted = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= shifted;
        state_[3] = rotate(state_[3], 45);
        return result;
    }

  private:
    static std::uint64_t rotate(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
    std::uint64_t state_[4];
};

// `draws` draws with replacement from `draws` pseudo-references for each resample; draw d counts for distinct owners[d].
// Uniform without a division and without bias (Lemire 2019): 32 random bits a draw, two draws a 64-bit number.
inline void resample_counts(std::uint64_t seed, const std::int64_t* owners, std::uint32_t draws, std::size_t distinct,
                            std::size_t bootstraps, double* counts) {
    Random random(seed);
    std::uint64_t spare = 0;
    bool has_spare = false;
    const std::uint32_t threshold = draws ? (0u - draws) % draws : 0;
    for (std::size_t b = 0; b < bootstraps; ++b) {
        double* row = counts + b * distinct;
        for (std::uint32_t d = 0; d < draws; ++d) {
            std::uint64_t product;
            do {
                if (!has_spare) spare = random.next();
                product = (spare & 0xFFFFFFFFull) * draws;
                spare >>= 32;
                has_spare = !has_spare;
            } while (static_cast<std::uint32_t>(product) < threshold);
            row[owners[product >> 32]] += 1.0;
        }
    }
}

}  // namespace mbrace
