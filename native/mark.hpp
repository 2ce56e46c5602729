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

// Calls often(n) for the orders that repeat, and rarely(order, bits, item) for every n-gram of the others; `bits_of(n)`
// are the bits of an order. Four orders go side by side: neighbours of one order set bits of the same word and wait for
// each other, those of different orders do not.
template <class Often, class Rarely, class BitsOf>
inline void mark_orders(const Options& options, const Grams& grams, Cursors& cursors, Often often, Rarely rarely,
                        BitsOf bits_of) {
    int n = 0;
    for (; n < std::min(OFTEN_REPEATED, options.char_order); ++n) often(n);
    for (; n + 4 <= options.char_order; n += 4) {
        const Item* items[4];
        std::uint64_t* bits[4];
        for (int k = 0; k < 4; ++k) {
            items[k] = grams.items[n + k].data();
            bits[k] = bits_of(n + k);
        }
        const std::size_t common = grams.counts[n + 3];  // the highest order has the fewest n-grams
        for (std::size_t i = 0; i < common; ++i) {
            for (int k = 0; k < 4; ++k) rarely(n + k, bits[k], items[k][i]);
        }
        for (int k = 0; k < 4; ++k) {
            for (std::size_t i = common; i < grams.counts[n + k]; ++i) rarely(n + k, bits[k], items[k][i]);
            cursors.reset(n + k);
        }
    }
    for (; n < options.orders(); ++n) {
        std::uint64_t* bits = bits_of(n);
        for (std::size_t i = 0; i < grams.counts[n]; ++i) rarely(n, bits, grams.items[n][i]);
        cursors.reset(n);
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
