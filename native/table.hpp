// A small hash table with open addressing from 64-bit keys to plain values, made for many look-ups of few keys.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "pool.hpp"

namespace mbrace {

inline std::uint64_t mix(std::uint64_t key) {
    key ^= key >> 32;
    return key * 0x9E3779B97F4A7C15ull;
}

template <class Value>
class Table {
  public:
    static constexpr std::uint64_t FREE = ~0ull;  // never used as a key

    struct Slot {
        std::uint64_t key = FREE;
        Value value{};
    };

    const Value* find(std::uint64_t key) const {
        if (slots_.empty()) return nullptr;
        std::size_t at = mix(key) >> shift_;
        while (true) {
            const Slot& slot = slots_[at];
            if (slot.key == key) return &slot.value;
            if (slot.key == FREE) return nullptr;
            at = (at + 1) & mask_;
        }
    }

    // Inserts a key that is not in the table. The pointer to its value is valid until the next insertion.
    Value* insert(std::uint64_t key, const Value& value) {
        if (8 * (used_ + 1) > 5 * slots_.size()) resize(slots_.empty() ? 64 : 2 * slots_.size());
        ++used_;
        return put(key, value);
    }

    std::size_t bytes() const { return slots_.size() * sizeof(Slot); }

  private:
    Value* put(std::uint64_t key, const Value& value) {
        std::size_t at = mix(key) >> shift_;
        while (slots_[at].key != FREE) at = (at + 1) & mask_;
        slots_[at].key = key;
        slots_[at].value = value;
        return &slots_[at].value;
    }

    void resize(std::size_t size) {
        Vector<Slot> old(size);
        old.swap(slots_);
        mask_ = slots_.size() - 1;
        shift_ = 64 - std::countr_zero(slots_.size());
        for (const Slot& slot : old) {
            if (slot.key != FREE) put(slot.key, slot.value);
        }
    }

    Vector<Slot> slots_;
    std::size_t used_ = 0;
    std::size_t mask_ = 0;
    int shift_ = 63;
};

}  // namespace mbrace
