// Items: what the bits of the kernel stand for.
//
// chrF needs, per order, the sum over n-grams of min(count in hypothesis, count in reference). The k-th occurrence of an
// n-gram in a sentence is its own *item* (n-gram, k); then that sum is |A & B| over sets of items. Items of an order are
// numbered 1, 2, ... in order of appearance in the hypotheses; 0 means "none". The item of an n-gram's first occurrence
// names the n-gram, and `next` leads from the k-th occurrence to the one after it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "pool.hpp"

namespace mbrace {

using Item = std::uint32_t;
constexpr int MAX_ORDERS = 32;  // character and word orders together
constexpr int WINDOW = 6;       // character orders that one step finds together

struct Options {
    int char_order = 6;
    int word_order = 2;
    bool whitespace = false;

    int orders() const { return char_order + word_order; }
};

// The items of the orders 1 to 3 that begin at a position, or of the one n-gram of a lower order (characters.hpp).
struct Trigram {
    Item items[3];
    std::uint32_t id;
};

// For every order and position of one text, the item that names the n-gram there (0: none, or not in the index).
struct Grams {
    struct Row {
        Item items[WINDOW];    // character orders 1 to 6
        std::uint32_t window;  // see characters.hpp; 0: not in the index
        std::uint32_t unused;
    };

    std::vector<Row> rows;                // by position
    std::vector<Item> items[MAX_ORDERS];  // orders beyond those of a row, and of words
    std::vector<std::uint32_t> ids, longer_ids;  // of words, and of their n-grams of the order before the one at hand
    std::size_t counts[MAX_ORDERS] = {};  // n-grams of the order in the text: what precision and recall divide by

    // The items of an order, `step` apart.
    std::pair<const Item*, std::size_t> of(const Options& options, int order) const {
        if (order >= WINDOW || order >= options.char_order) return {items[order].data(), 1};
        return {rows.empty() ? nullptr : rows[0].items + order, sizeof(Row) / sizeof(Item)};
    }
};

// The items of all orders that the hypotheses have.
class Items {
  public:
    Items(int orders, std::size_t expected) {
        for (int n = 0; n < orders; ++n) {
            next_[n].reserve(expected);
            next_[n].push_back(0);
        }
    }

    std::size_t count(int order) const { return next_[order].size(); }  // the none item included
    const Item* next(int order) const { return next_[order].data(); }
    Item add(int order) {
        next_[order].push_back(0);
        return static_cast<Item>(next_[order].size() - 1);
    }
    Item next_or_new(int order, Item item) {
        Item following = next_[order][item];
        if (following == 0) {
            following = add(order);
            next_[order][item] = following;
        }
        return following;
    }

    // Item i of an order becomes final[order][i], of `sizes[order]` numbers.
    void renumber(int orders, const Vector<Item>* final, const std::size_t* sizes) {
        for (int n = 0; n < orders; ++n) {
            Vector<Item> next(sizes[n]);
            for (std::size_t i = 0; i < next_[n].size(); ++i) next[final[n][i]] = final[n][next_[n][i]];
            next_[n] = std::move(next);
        }
    }

    std::size_t bytes() const {
        std::size_t total = 0;
        for (const auto& next : next_) total += sizeof(Item) * next.size();
        return total;
    }

  private:
    Vector<Item> next_[MAX_ORDERS];
};

// An n-gram made of one that is known and a symbol (a code point or a word) more.
struct Longer {
    std::uint32_t id;  // the item's first number, never 0 for one that is there
    Item item;
};

inline std::uint64_t pair_key(std::uint32_t a, std::uint32_t b) { return (static_cast<std::uint64_t>(a) << 32) | b; }

}  // namespace mbrace
