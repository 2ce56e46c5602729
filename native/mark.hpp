// How a text's n-grams become items: the k-th occurrence of an n-gram is its k-th item.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "numbering.hpp"
#include "pool.hpp"

namespace mbrace {

// Characters and their pairs repeat all the time: there a cursor leads every n-gram from item to item, without a branch.
// Higher orders rarely repeat: there the bit itself says that an occurrence is not the first, and only then a cursor is
// looked at.
constexpr int OFTEN_REPEATED = 2;

// By the item that names an n-gram, the item of its latest occurrence. All 0 between two texts, so that one set of
// cursors serves a thread for every index.
struct Cursors {
    Vector<Item> latest[MAX_ORDERS];
    std::vector<Item> touched[MAX_ORDERS];

    void cover(const Numbering& numbering, int order) {
        if (latest[order].size() < numbering.items(order)) latest[order].resize(numbering.items(order) * 2);
    }
    void reset(int order) {
        for (Item item : touched[order]) latest[order][item] = 0;
        touched[order].clear();
    }
};

// Marks a text's n-grams: often(order, bits, item) for those of the orders that repeat, rarely(order, bits, item) for
// those of the others. `bits_of(n)` are the bits of an order, a word lies Stride words after the one before.
//
// Six orders go side by side: neighbours of one order set bits of the same word and wait for each other, those of
// different orders do not. An n-gram that repeats begins with a shorter one that does, so one look at the trigram mostly
// clears all above it. Item 0 (none) may set bit 0, which is cleared at the end.
template <std::size_t Stride, class Often, class Rarely, class BitsOf>
inline void mark_orders(const Options& options, const Grams& grams, Cursors& cursors, Often often, Rarely rarely,
                        BitsOf bits_of) {
    auto set = [](std::uint64_t* bits, Item item) { bits[(item >> 6) * Stride] |= 1ull << (item & 63); };
    std::size_t done = 0;
    if (options.char_order >= WINDOW) {
        std::uint64_t* bits[WINDOW];
        for (int n = 0; n < WINDOW; ++n) bits[n] = bits_of(n);
        done = grams.counts[WINDOW - 1];
        for (std::size_t i = 0; i < done; ++i) {
            const Item* items = grams.rows[i].items;
            often(0, bits[0], items[0]);
            often(1, bits[1], items[1]);
            const Item trigram = items[2];
            if (bits[2][(trigram >> 6) * Stride] >> (trigram & 63) & (trigram != 0)) [[unlikely]] {
                for (int n = 2; n < WINDOW; ++n) rarely(n, bits[n], items[n]);
            } else {
                for (int n = 2; n < WINDOW; ++n) set(bits[n], items[n]);
            }
        }
    }
    for (int n = 0; n < options.orders(); ++n) {
        std::uint64_t* bits = bits_of(n);
        const auto [items, step] = grams.of(options, n);
        const bool repeats = n < std::min(OFTEN_REPEATED, options.char_order);
        for (std::size_t i = n < std::min(WINDOW, options.char_order) ? done : 0; i < grams.counts[n]; ++i) {
            if (repeats) {
                often(n, bits, items[i * step]);
            } else {
                rarely(n, bits, items[i * step]);
            }
        }
        bits[0] &= ~1ull;
        if (repeats) {
            Item* latest = cursors.latest[n].data();
            const std::size_t covered = cursors.latest[n].size();
            if (covered <= 4 * grams.counts[n]) {
                std::fill(latest, latest + covered, 0);
            } else {
                for (std::size_t i = 0; i < grams.counts[n]; ++i) latest[items[i * step]] = 0;
            }
        } else {
            cursors.reset(n);
        }
    }
}

inline float reciprocal(std::size_t length) { return length ? 1.0f / static_cast<float>(length) : 0.0f; }

// How many of the orders first .. first + orders - 1 have at least one n-gram.
inline float effective(const Grams& grams, int first, int orders) {
    int n = 0;
    while (n < orders && grams.counts[first + n] > 0) ++n;
    return static_cast<float>(n);
}

}  // namespace mbrace
