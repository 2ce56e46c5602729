// Texts told apart: one that came before is found again.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "table.hpp"
#include "text.hpp"

namespace mbrace {

class Distinct {
  public:
    // The number of a text: of those that differ from it, so many came before. Its buffer is read again later.
    std::size_t add(const Text& text) {
        if (2 * texts_.size() >= slots_.size()) grow();
        const std::uint64_t hash = hash_of(text);
        std::size_t place = hash >> shift_;
        for (; slots_[place] != 0; place = (place + 1) & (slots_.size() - 1)) {
            const std::size_t which = slots_[place] - 1;
            if (hashes_[which] == hash && same(texts_[which], text)) return which;
        }
        texts_.push_back(text);
        hashes_.push_back(hash);
        slots_[place] = static_cast<std::uint32_t>(texts_.size());
        return texts_.size() - 1;
    }

    std::size_t size() const { return texts_.size(); }

  private:
    static std::size_t bytes_of(const Text& text) { return text.length * static_cast<std::size_t>(text.kind); }

    static bool same(const Text& a, const Text& b) {
        return a.kind == b.kind && a.length == b.length && (a.length == 0 || !std::memcmp(a.data, b.data, bytes_of(a)));
    }

    static std::uint64_t hash_of(const Text& text) {
        const char* at = static_cast<const char*>(text.data);
        std::size_t left = bytes_of(text);
        std::uint64_t hash = mix(left + 1), last = 0;
        for (std::uint64_t eight; left >= 8; at += 8, left -= 8) {
            std::memcpy(&eight, at, 8);
            hash = mix(hash ^ eight);
        }
        if (left > 0) std::memcpy(&last, at, left);
        return mix(mix(hash ^ last));
    }

    void grow() {
        slots_.assign(slots_.empty() ? 64 : 2 * slots_.size(), 0);
        shift_ = 64 - std::countr_zero(slots_.size());
        for (std::size_t which = 0; which < texts_.size(); ++which) {
            std::size_t place = hashes_[which] >> shift_;
            while (slots_[place] != 0) place = (place + 1) & (slots_.size() - 1);
            slots_[place] = static_cast<std::uint32_t>(which + 1);
        }
    }

    std::vector<Text> texts_;
    std::vector<std::uint64_t> hashes_;
    std::vector<std::uint32_t> slots_;  // a text's number and one; 0: free
    int shift_ = 63;
};

}  // namespace mbrace
