// Random numbers for bootstrap resamples.
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

// Uniform random integers below `bound`, without bias and without a division per number (Lemire 2019): 32 random bits
// each, two from every 64-bit number.
class Draws {
  public:
    Draws(std::uint64_t seed, std::uint32_t bound)
        : random_(seed), bound_(bound), threshold_(bound ? (0u - bound) % bound : 0) {}

    std::size_t next() {
        std::uint64_t product;
        do {
            if (!has_spare_) spare_ = random_.next();
            product = (spare_ & 0xFFFFFFFFull) * bound_;
            spare_ >>= 32;
            has_spare_ = !has_spare_;
        } while (static_cast<std::uint32_t>(product) < threshold_);
        return static_cast<std::size_t>(product >> 32);
    }

  private:
    Random random_;
    std::uint32_t bound_;
    std::uint32_t threshold_;
    std::uint64_t spare_ = 0;
    bool has_spare_ = false;
};

}  // namespace mbrace
