// How a text's n-grams become items: the k-th occurrence of an n-gram is its k-th item.
//
// Characters and their pairs repeat all the time: there a cursor leads every n-gram from item to item. Higher orders, and
// words, rarely repeat: there a look at the item itself says whether an occurrence is the first, and a cursor is needed only
// if it is not.
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

constexpr int OFTEN_REPEATED = 2;

// By the item that names an n-gram, the item of its next occurrence (orders that often repeat) or of its latest one.
// Between two texts each is the item itself, so that one set of cursors serves a thread for every index.
struct Cursors {
    Vector<Item> at[MAX_ORDERS];
    Vector<Item> late[OFTEN_REPEATED];  // of an index being made: an occurrence from which the last one is near; 0: unknown
    std::vector<std::uint32_t> aside;  // positions where something repeats
    std::vector<Item> touched;

    void cover(const Numbering& numbering, int order) {
        const std::size_t before = at[order].size();
        if (before >= numbering.items(order)) return;
        at[order].resize(numbering.items(order) * 2);
        std::iota(at[order].begin() + before, at[order].end(), static_cast<Item>(before));
    }
};

// What a thread needs to read texts, used again for every text and every index.
struct Desk {
    Segment segment;
    Grams grams;
    Cursors cursors;
    Vector<std::uint8_t> seen[MAX_ORDERS];  // [order][item]: the number of the reference that had it
    std::uint8_t text = 0;

    std::size_t bytes() const {
        std::size_t total = 0;
        for (int n = 0; n < MAX_ORDERS; ++n) total += seen[n].size() + sizeof(Item) * cursors.at[n].size();
        return total;
    }
};

// Tells `Side`, hypotheses or a reference, the items of one text. side.order(n) is a small object for one order, kept in
// registers: stores of bytes, after which a compiler must expect anything in memory to have changed, do not concern it.
//   take(i, item)      the text has this item, at position i (the last call for a position counts)
//   remember(item)     ... and will be asked for it:
//   has(item)          whether it was remembered for this text
// side.another(n, item) is the item after this one, 0 if there is none; hypotheses (Side::ADDS) add what is missing.
// Item 0, none, may be taken too, and means nothing.
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
            // Six orders side by side. The first positions have no n-gram of the higher ones yet, but item 0.
            Often single(*this, 0), pair(*this, 1);
            single(0, grams_.ending_at(0)[0]);
            for (int k = 1; k < WINDOW; ++k) side_.order(k).take(0, 0);
            rarely<WINDOW - OFTEN_REPEATED>(
                OFTEN_REPEATED, 1, length, [&](std::size_t i) { return grams_.ending_at(i) + OFTEN_REPEATED; },
                [single, pair](std::size_t i, const Item* items) mutable {
                    single(i, items[-2]);
                    pair(i, items[-1]);
                });
            n = WINDOW;
        }
        for (; n < std::min(WINDOW, chars); ++n) {
            for (std::size_t i = 0; i < std::min<std::size_t>(n, length); ++i) side_.order(n).take(i, 0);
            if (n < OFTEN_REPEATED) {
                Often each(*this, n);
                for (std::size_t i = n; i < length; ++i) each(i, grams_.ending_at(i)[n]);
            } else {
                rarely<1>(n, n, length, [&](std::size_t i) { return grams_.ending_at(i) + n; });
            }
        }
        for (int k = 0; k < std::min(OFTEN_REPEATED, chars); ++k) reset(k, length);
        auto one_order = [&](int order) {
            rarely<1>(order, 0, grams_.counts[order], [&](std::size_t i) { return &grams_.items[order][i]; });
        };
        for (; n < chars; ++n) one_order(n);
        if (options.word_order >= 2) {  // a word, and the pair that ends in it
            const Item *words = grams_.items[n].data(), *pairs = grams_.items[n + 1].data();
            rarely<2>(n, 0, grams_.counts[n], [&](std::size_t i) {
                return std::array<Item, 2>{words[i], i > 0 ? pairs[i - 1] : 0};
            });
            n += 2;
        }
        for (; n < orders; ++n) one_order(n);
    }

  private:
    using Order = decltype(std::declval<Side&>().order(0));

    // An order that often repeats.
    struct Often {
        Marker& marker;
        int n;
        Order order;
        Item* cursors;
        const Item* next;

        Often(Marker& of, int n_)
            : marker(of), n(n_), order(of.side_.order(n_)), cursors(of.cursors_.at[n_].data()), next(of.numbering_.next(n_)) {}

        void operator()(std::size_t i, Item item) {
            Item now = cursors[item];
            if constexpr (Side::ADDS) {
                if (now == 0) [[unlikely]] now = one_more(item);
            }
            order.take(i, now);
            cursors[item] = next[now];
        }

        // One occurrence more than in any text before.
        Item one_more(Item item) {
            Vector<Item>& late = marker.cursors_.late[n];
            if (late.size() <= item) late.resize(2 * (item + 1));
            Item now = late[item] ? late[item] : item;
            while (next[now] != 0) now = next[now];
            now = late[item] = marker.side_.another(n, now);
            next = marker.numbering_.next(n);
            return now;
        }
    };

    void reset(int n, std::size_t length) {
        Item* cursors = cursors_.at[n].data();
        const std::size_t covered = std::min(cursors_.at[n].size(), numbering_.items(n));
        if (covered <= 8 * length) {
            std::iota(cursors, cursors + covered, 0);
        } else {
            for (std::size_t i = n; i < length; ++i) cursors[grams_.ending_at(i)[n]] = grams_.ending_at(i)[n];
        }
    }

    // So many orders from `first` on, items_at(i) of them at each position. An n-gram that repeats ends in a shorter one
    // that does: one look at the shortest tells, without a branch, whether the position is put aside.
    template <int Orders, class ItemsAt, class Beside>
    void rarely(int first, std::size_t begin, std::size_t end, ItemsAt items_at, Beside beside) {
        if (cursors_.aside.size() < end) cursors_.aside.resize(end);
        std::uint32_t* const aside = cursors_.aside.data();
        auto order = [&]<std::size_t... K>(std::index_sequence<K...>) {
            return std::array<Order, Orders>{side_.order(first + static_cast<int>(K))...};
        }(std::make_index_sequence<Orders>{});
        std::size_t count = 0;
        for (std::size_t i = begin; i < end; ++i) {
            const auto items = items_at(i);
            beside(i, items);
            const Item shortest = items[0];
            const bool repeats = order[0].has(shortest) & (shortest != 0);
            const Item keep = static_cast<Item>(repeats) - 1;
            for (int k = 0; k < Orders; ++k) {
                order[k].take(i, items[k] & keep);
                order[k].remember(items[k] & keep);
            }
            aside[count] = static_cast<std::uint32_t>(i);
            count += repeats;
        }
        for (int k = 0; k < Orders && count > 0; ++k) {
            std::size_t left = 0;
            for (std::size_t j = 0; j < count; ++j) {
                const std::uint32_t i = aside[j];
                const auto items = items_at(i);
                if (items[k] != 0 && order[k].has(items[k])) {
                    const Item now = again(first + k, items[k]);
                    if (now != 0) order[k].take(i, now);  // else: more often than in any hypothesis
                    aside[left++] = i;
                } else {
                    for (int longer = k; longer < Orders; ++longer) {
                        order[longer].take(i, items[longer]);
                        order[longer].remember(items[longer]);
                    }
                }
            }
            count = left;
            Item* latest = cursors_.at[first + k].data();
            for (Item item : cursors_.touched) latest[item] = item;
            cursors_.touched.clear();
        }
    }
    template <int Orders, class ItemsAt>
    void rarely(int first, std::size_t begin, std::size_t end, ItemsAt items_at) {
        rarely<Orders>(first, begin, end, items_at, [](std::size_t, const auto&) {});
    }

    // The item of an n-gram's next occurrence after the latest; 0: there is none.
    Item again(int n, Item item) {
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
