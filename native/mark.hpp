// How a text's n-grams become items: the k-th occurrence of an n-gram in the text is the n-gram's k-th item.
//
// Single characters and pairs repeat all the time: a cursor per n-gram holds the item of its next occurrence. Higher
// orders, and words, rarely repeat: whether the first item was already taken tells whether an occurrence is the first, and
// a cursor is used only if it is not.
//
// Example: the hypothesis "abcab". Numbering (characters.hpp) has given the first occurrences their items:
//
//   order 1    a 1, b 2, c 3       order 2    ab 1, bc 2, ca 3
//
// At the second "a" the cursor of "a" finds no next item, so a new one is made, 4, and next(1) becomes 4; the second "b"
// gets item 5, the second "ab" item 4 of order 2. So the text has items 1 2 3 4 5 of order 1 and 1 2 3 4 of order 2. The
// reference "abab" then has items 1 2 4 5 of order 1: all four match. The reference "aaa" has 1 4 0: the hypotheses have no
// third "a".
//
// Order 3 and above in the hypothesis "abcabc" (abc 1, bca 2, cab 3): at its last position item 1 is already taken, so the
// position is set aside. Afterwards its trigram gets a new item, 4. Its 4-gram "cabc" is not a repetition, so it and all
// longer n-grams that end there are first occurrences.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "numbering.hpp"
#include "pool.hpp"

namespace mbrace {

constexpr int FREQUENT_ORDERS = 2;  // orders whose n-grams often repeat within a text

// By the first item of an n-gram: the item of its next occurrence (frequent orders), or of its latest one (other orders).
// Between two texts every cursor is the first item itself, so one set of cursors serves a thread for every index.
struct Cursors {
    Vector<Item> at[MAX_ORDERS];
    Vector<Item> newest[FREQUENT_ORDERS];  // while an index is made: the item made last for an n-gram; 0: none yet
    std::vector<std::uint32_t> aside;      // positions where an n-gram repeats
    std::vector<Item> touched;             // cursors to be reset

    void cover(const Numbering& numbering, int order) {
        const std::size_t before = at[order].size();
        if (before >= numbering.items(order)) return;
        at[order].resize(numbering.items(order) * 2);
        std::iota(at[order].begin() + before, at[order].end(), static_cast<Item>(before));
    }
};

// The memory in which a thread reads texts, reused for every text and every index.
struct TextBuffers {
    Segment segment;
    Grams grams;
    Cursors cursors;
    Vector<std::uint8_t> seen[MAX_ORDERS];  // [order][item]: the number of the last reference that had it
    std::uint8_t text = 0;                  // the number of the current reference, 1 to 255

    std::size_t bytes() const {
        std::size_t total = 0;
        for (int n = 0; n < MAX_ORDERS; ++n) total += seen[n].size() + sizeof(Item) * cursors.at[n].size();
        return total;
    }
};

// Passes the items of one text to `side`, which is one row of an index (Index::Row) or a reference (IndexedReference).
// side.order(n) is a small object for one order. It is a copy, so that its pointers stay in registers: after a store of a
// byte, a compiler must expect anything in memory to have changed.
//   take(i, item)      the text has this item, at position i (the last call for a position counts)
//   remember(item)     the same, for has():
//   has(item)          whether it was remembered for this text
// side.another(n, item) is the item of the n-gram's next occurrence, 0 if there is none; if Side::ADDS_ITEMS it is made.
// Item 0 may be taken too and has no effect.
template <class Side>
class Marker {
  public:
    Marker(const Numbering& numbering, const Grams& grams, Cursors& cursors, Side& side)
        : numbering_(numbering), grams_(grams), cursors_(cursors), side_(side) {}

    void mark() {
        const Options& options = numbering_.options();
        const int chars = options.char_order, orders = options.orders();
        for (int n = 0; n < orders; ++n) cursors_.cover(numbering_, n);
        const std::size_t length = chars > 0 ? grams_.counts[0] : 0;
        int n = 0;
        if (chars >= WINDOW && length > 0) {
            // Six orders in one pass. The first positions have no n-gram of the higher orders: item 0.
            FrequentOrder single(*this, 0), pair(*this, 1);
            single(0, grams_.ending_at(0)[0]);
            for (int k = 1; k < WINDOW; ++k) side_.order(k).take(0, 0);
            rare_orders<WINDOW - FREQUENT_ORDERS>(
                FREQUENT_ORDERS, 1, length, [&](std::size_t i) { return grams_.ending_at(i) + FREQUENT_ORDERS; },
                [single, pair](std::size_t i, const Item* items) mutable {
                    single(i, items[-2]);
                    pair(i, items[-1]);
                });
            n = WINDOW;
        }
        for (; n < std::min(WINDOW, chars); ++n) {
            for (std::size_t i = 0; i < std::min<std::size_t>(n, length); ++i) side_.order(n).take(i, 0);
            if (n < FREQUENT_ORDERS) {
                FrequentOrder each(*this, n);
                for (std::size_t i = n; i < length; ++i) each(i, grams_.ending_at(i)[n]);
            } else {
                rare_orders<1>(n, n, length, [&](std::size_t i) { return grams_.ending_at(i) + n; });
            }
        }
        for (int k = 0; k < std::min(FREQUENT_ORDERS, chars); ++k) reset(k, length);
        auto one_order = [&](int order) {
            rare_orders<1>(order, 0, grams_.counts[order], [&](std::size_t i) { return &grams_.items[order][i]; });
        };
        for (; n < chars; ++n) one_order(n);
        if (options.word_order >= 2) {  // a word, and the pair that ends in it
            const Item *words = grams_.items[n].data(), *pairs = grams_.items[n + 1].data();
            rare_orders<2>(n, 0, grams_.counts[n],
                           [&](std::size_t i) { return std::array<Item, 2>{words[i], i > 0 ? pairs[i - 1] : 0}; });
            n += 2;
        }
        for (; n < orders; ++n) one_order(n);
    }

  private:
    using Order = decltype(std::declval<Side&>().order(0));

    // Takes the items of an order that often repeats.
    struct FrequentOrder {
        Marker& marker;
        int n;
        Order order;
        Item* cursors;
        const Item* next;

        FrequentOrder(Marker& marker_, int n_)
            : marker(marker_), n(n_), order(marker_.side_.order(n_)), cursors(marker_.cursors_.at[n_].data()),
              next(marker_.numbering_.next(n_)) {}

        void operator()(std::size_t i, Item item) {
            Item now = cursors[item];
            if constexpr (Side::ADDS_ITEMS) {
                if (now == 0) [[unlikely]] {
                    now = make_occurrence(item);
                }
            }
            order.take(i, now);
            cursors[item] = next[now];
        }

        // Makes the item of an occurrence that no text so far had.
        Item make_occurrence(Item item) {
            Vector<Item>& newest = marker.cursors_.newest[n];
            if (newest.size() <= item) newest.resize(2 * (item + 1));
            Item now = newest[item] ? newest[item] : item;
            while (next[now] != 0) now = next[now];
            now = newest[item] = marker.side_.another(n, now);
            next = marker.numbering_.next(n);
            return now;
        }
    };

    // Puts the cursors of a frequent order back for the next text.
    void reset(int n, std::size_t length) {
        Item* cursors = cursors_.at[n].data();
        const std::size_t covered = std::min(cursors_.at[n].size(), numbering_.items(n));
        if (covered <= 8 * length) {
            std::iota(cursors, cursors + covered, 0);
        } else {
            for (std::size_t i = n; i < length; ++i) cursors[grams_.ending_at(i)[n]] = grams_.ending_at(i)[n];
        }
    }

    // Takes the items of the rarely repeated orders `first` to `first + Orders - 1`: items_at(i)[0 .. Orders - 1] at each
    // position; also_at(i, items) does what else is to be done in the same pass. An n-gram that repeats ends in a shorter
    // one that repeats too, so looking at the shortest tells whether to set the position aside. No branch of the first pass
    // depends on the text.
    template <int Orders, class ItemsAt, class AlsoAt>
    void rare_orders(int first, std::size_t begin, std::size_t end, ItemsAt items_at, AlsoAt also_at) {
        if (cursors_.aside.size() < end) cursors_.aside.resize(end);
        std::uint32_t* const aside = cursors_.aside.data();
        auto order = [&]<std::size_t... K>(std::index_sequence<K...>) {
            return std::array<Order, Orders>{side_.order(first + static_cast<int>(K))...};
        }(std::make_index_sequence<Orders>{});
        std::size_t count = 0;
        for (std::size_t i = begin; i < end; ++i) {
            const auto items = items_at(i);
            also_at(i, items);
            const Item shortest = items[0];
            const bool repeats = order[0].has(shortest) & (shortest != 0);
            const Item mask = static_cast<Item>(repeats) - 1;  // all ones, or 0 for a position that is set aside
            for (int k = 0; k < Orders; ++k) {
                order[k].take(i, items[k] & mask);
                order[k].remember(items[k] & mask);
            }
            aside[count] = static_cast<std::uint32_t>(i);
            count += repeats;
        }
        for (int k = 0; k < Orders && count > 0; ++k) {
            std::size_t still_aside = 0;
            for (std::size_t j = 0; j < count; ++j) {
                const std::uint32_t i = aside[j];
                const auto items = items_at(i);
                if (items[k] != 0 && order[k].has(items[k])) {
                    const Item now = next_occurrence(first + k, items[k]);
                    if (now != 0) order[k].take(i, now);  // 0: no hypothesis has so many
                    aside[still_aside++] = i;
                } else {
                    for (int longer = k; longer < Orders; ++longer) {
                        order[longer].take(i, items[longer]);
                        order[longer].remember(items[longer]);
                    }
                }
            }
            count = still_aside;
            Item* latest = cursors_.at[first + k].data();
            for (Item item : cursors_.touched) latest[item] = item;
            cursors_.touched.clear();
        }
    }
    template <int Orders, class ItemsAt>
    void rare_orders(int first, std::size_t begin, std::size_t end, ItemsAt items_at) {
        rare_orders<Orders>(first, begin, end, items_at, [](std::size_t, const auto&) {});
    }

    // The item of an n-gram's next occurrence after the latest one; 0: there is none.
    Item next_occurrence(int n, Item item) {
        Item& latest = cursors_.at[n][item];
        const Item now = side_.another(n, latest);
        if (now != 0) {
            cursors_.touched.push_back(item);
            latest = now;
        }
        return now;
    }

    const Numbering& numbering_;
    const Grams& grams_;
    Cursors& cursors_;
    Side& side_;
};

inline float reciprocal(std::size_t length) { return length ? 1.0f / static_cast<float>(length) : 0.0f; }

// How many of the orders first .. first + orders - 1 have at least one n-gram.
inline float effective(const Grams& grams, int first, int orders) {
    int n = 0;
    while (n < orders && grams.counts[first + n] > 0) ++n;
    return static_cast<float>(n);
}

}  // namespace mbrace
