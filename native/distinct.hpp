// Distinct texts, numbered in the order of their first copies.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "table.hpp"
#include "text.hpp"

namespace mbrace {

class Distinct {
  public:
    // Makes room for texts that are to come, so that the table need not grow step by step.
    void expect(std::size_t more) {
        const std::size_t texts = texts_.size() + more;
        if (2 * texts >= slots_.size()) grow(std::max(LEAST_SLOTS, std::bit_ceil(2 * texts + 1)));
        texts_.reserve(texts);
        hashes_.reserve(texts);
    }

    // The number of a text, the same for equal texts: 0, 1, ... The text's buffer is read again by later calls.
    std::size_t add(const Text& text) {
        if (2 * texts_.size() >= slots_.size()) grow(std::max(LEAST_SLOTS, 2 * slots_.size()));
        const std::uint64_t hash = hash_of(text);
        std::size_t slot = hash >> shift_;
        for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
            const std::size_t number = slots_[slot] - 1;
            if (hashes_[number] == hash && same(texts_[number], text)) return number;
        }
        texts_.push_back(text);
        hashes_.push_back(hash);
        slots_[slot] = static_cast<std::uint32_t>(texts_.size());
        return texts_.size() - 1;
    }

    static constexpr std::size_t NONE = ~std::size_t{0};

    // The number of a text; NONE if it was not added.
    std::size_t find(const Text& text) const {
        if (slots_.empty()) return NONE;
        const std::uint64_t hash = hash_of(text);
        for (std::size_t slot = hash >> shift_; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
            const std::size_t number = slots_[slot] - 1;
            if (hashes_[number] == hash && same(texts_[number], text)) return number;
        }
        return NONE;
    }

    // From now on, reads the text added last from another buffer, which must hold a copy of it.
    void move_last(const void* copy) { texts_.back().data = copy; }

  private:
    static constexpr std::size_t LEAST_SLOTS = 64;

    static std::size_t bytes_of(const Text& text) { return text.length * static_cast<std::size_t>(text.kind); }

    static bool same(const Text& a, const Text& b) {
        return a.kind == b.kind && a.length == b.length && (a.length == 0 || !std::memcmp(a.data, b.data, bytes_of(a)));
    }

    static std::uint64_t hash_of(const Text& text) {
        const char* at = static_cast<const char*>(text.data);
        std::size_t left = bytes_of(text);
        std::uint64_t hash = mix(left + 1), other = ~hash, last = 0;  // side by side: a multiplication takes a few cycles
        for (std::uint64_t words[2]; left >= 16; at += 16, left -= 16) {
            std::memcpy(words, at, 16);
            hash = mix(hash ^ words[0]);
            other = mix(other ^ words[1]);
        }
        if (left >= 8) {
            std::memcpy(&last, at, 8);
            other = mix(other ^ last);
            at += 8, left -= 8, last = 0;
        }
        if (left > 0) std::memcpy(&last, at, left);
        return mix(mix(hash ^ last) ^ other);
    }

    void grow(std::size_t slots) {
        slots_.assign(slots, 0);
        shift_ = 64 - std::countr_zero(slots_.size());
        for (std::size_t number = 0; number < texts_.size(); ++number) {
            std::size_t slot = hashes_[number] >> shift_;
            while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
            slots_[slot] = static_cast<std::uint32_t>(number + 1);
        }
    }

    std::vector<Text> texts_;
    std::vector<std::uint64_t> hashes_;
    std::vector<std::uint32_t> slots_;  // a text's number plus one; 0: free
    int shift_ = 63;
};

}  // namespace mbrace
