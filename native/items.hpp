// Items: one bit of the kernel stands for one item.
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
constexpr int WINDOW = 6;       // character orders that are numbered together, by one state

struct Options {
    int char_order = 6;
    int word_order = 2;
    bool whitespace = false;

    int orders() const { return char_order + word_order; }
};

// The longest known n-gram of characters that ends at a position (characters.hpp).
struct State {
    static constexpr std::uint32_t SHORT = 1u << 31;  // set in the id of a state that is shorter than a full one

    Item items[WINDOW];    // of the n-grams of order 1 to 6 that end at the position
    std::uint32_t last;    // the last code point, and FOLLOWS_PREVIOUS if it was met after the state before it in memory
    std::uint32_t follow;  // the id of another state that was met after it; 0: none
};

// For every order and position of one text, the item of the n-gram there, as its first occurrence (0: not in the index).
struct Grams {
    std::vector<std::uint32_t> states;      // by position: ids of the states of characters
    const State* known[2];                  // the states by id: full ones, short ones
    std::vector<Item> items[MAX_ORDERS];    // character orders beyond those of a state, and word orders
    std::vector<std::uint32_t> ids;         // by position: words
    std::vector<std::uint32_t> longer_ids;  // by position: n-grams of the order numbered last
    std::size_t counts[MAX_ORDERS] = {};    // n-grams per order in the text: precision and recall divide by them

    // The items of the n-grams of characters, orders 1 to 6, that end at a position.
    const Item* ending_at(std::size_t i) const {
        const std::uint32_t id = states[i];
        return known[id / State::SHORT][id % State::SHORT].items;
    }
};

// The items of the hypotheses, of all orders.
class Items {
  public:
    Items(int orders, std::size_t expected) {
        for (int n = 0; n < orders; ++n) {
            next_[n].reserve(expected);
            next_[n].push_back(0);
        }
    }

    std::size_t count(int order) const { return next_[order].size(); }  // item 0 included
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

    std::size_t bytes() const {
        std::size_t total = 0;
        for (const auto& next : next_) total += sizeof(Item) * next.size();
        return total;
    }

  private:
    Vector<Item> next_[MAX_ORDERS];
};

// An n-gram made of a shorter one that is known and one more symbol (a code point or a word).
struct LongerGram {
    std::uint32_t id;  // equals the item; 0: not known
    Item item;
};

inline std::uint64_t pair_key(std::uint32_t a, std::uint32_t b) { return (static_cast<std::uint64_t>(a) << 32) | b; }

}  // namespace mbrace
