// Numbering the n-grams of characters exactly, without hashing strings.
//
// A *window* is six code points (past the end of a text: END) and knows the items of the orders 1 to 6 that begin there.
// The window one position further on has five of its code points and one more, so (window, code point) tells which it is.
// Windows lie in memory in the order in which they were first met: mostly the one behind is the one that follows. Where
// texts share a passage, as samples of one model do nearly everywhere, numbering a position is one comparison, and no
// position waits for a load of the one before it.
//
// Elsewhere tables find the window: three packed code points make a trigram, two trigrams a window. What a table has not
// seen goes the slow way, order by order through (n-gram, next code point).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "items.hpp"
#include "table.hpp"
#include "text.hpp"

namespace mbrace {

class Characters {
  public:
    static constexpr std::uint32_t UNKNOWN = ~0u;  // not in the index

    Characters(int order, std::size_t expected) : order_(order), windows_(2, NONE) {
        if (order == 0) return;
        windows_.reserve(expected);
        trigrams_.expect(expected / 2);
        sixgrams_.expect(expected);
        for (int n = 3; n < std::min(order, 5); ++n) longer_[n].expect(expected);
    }

    // `Insert`: hypotheses number what is new. Otherwise (references) what is not there stays 0, and nothing changes.
    template <bool Insert>
    void number(const Segment& segment, Items& items, Grams& grams) {
        const std::size_t length = segment.length;
        for (int n = 0; n < order_; ++n) grams.counts[n] = length > static_cast<std::size_t>(n) ? length - n : 0;
        if (grams.rows.size() < length) grams.rows.resize(length);
        Recent recent;
        const std::uint32_t* points = segment.points.data();
        Grams::Row* rows = grams.rows.data();
        std::uint32_t window = 0;
        for (std::size_t i = 0; i < length; ++i) {
            const std::uint32_t last = points[i + WINDOW - 1];
            if (windows_[window + 1].last == (last | BEHIND)) {
                ++window;
            } else {
                const std::uint32_t before = window;
                window = follower(before, last);
                if (window == 0) {
                    window = find<Insert>(segment, i, items, recent, rows[i]);
                    if (Insert && before != 0) follows(before, last, window);
                }
                if (window == 0) {
                    rows[i].window = 0;
                    continue;
                }
            }
            std::memcpy(&rows[i], &windows_[window], sizeof(Window));
            rows[i].window = window;
        }
        for (int n = WINDOW; n < order_; ++n) extend<Insert>(segment, items, grams, n);
    }

    void renumber(const Vector<Item>* final) {
        trigrams_.each([&](std::uint64_t key, Trigram& gram) {
            const bool unigram = (key >> 21 & END) == ABSENT, bigram = (key >> 42 & END) == ABSENT;
            if (unigram || bigram) {
                gram.items[0] = final[unigram ? 0 : 1][gram.items[0]];
            } else {
                for (int n = 0; n < std::min(3, order_); ++n) gram.items[n] = final[n][gram.items[n]];
            }
        });
        for (Window& window : windows_) {
            for (int n = 0; n < std::min(WINDOW, order_); ++n) window.items[n] = final[n][window.items[n]];
        }
        for (int n = 3; n < order_; ++n) {
            longer_[n].each([&](std::uint64_t, Longer& gram) { gram.item = final[n][gram.item]; });
        }
    }

    std::size_t bytes() const {
        std::size_t total = trigrams_.bytes() + sixgrams_.bytes() + followers_.bytes() + sizeof(Window) * windows_.size();
        for (const auto& table : longer_) total += table.bytes();
        return total;
    }

  private:
    struct Window {
        Item items[WINDOW];
        std::uint32_t last;    // its last code point, with BEHIND if it follows the window before it in memory
        std::uint32_t follow;  // another window that follows; 0: none
    };
    static_assert(sizeof(Window) == sizeof(Grams::Row));

    // Trigrams looked up in the last steps: the second of a window is the first of the one three further on.
    struct Recent {
        struct Place {
            std::size_t position = ~std::size_t{0};
            Trigram trigram{};
        };
        Place places[4];
    };

    static constexpr std::uint32_t BEHIND = 1u << 31;
    static constexpr Window NONE{{}, END + 1, 0};  // follows nothing

    // Where texts part, more than one window follows: the first has its place in the window, the others are in a table.
    std::uint32_t follower(std::uint32_t window, std::uint32_t symbol) const {
        const std::uint32_t follow = windows_[window].follow;
        if (follow == 0) return 0;
        if ((windows_[follow].last & ~BEHIND) == symbol) return follow;
        const std::uint32_t* found = followers_.find(pair_key(window, symbol));
        return found ? *found : 0;
    }
    void follows(std::uint32_t window, std::uint32_t symbol, std::uint32_t next) {
        if (next == window + 1) {
            windows_[next].last |= BEHIND;
        } else if (windows_[window].follow == 0) {
            windows_[window].follow = next;
        } else {
            followers_.insert(pair_key(window, symbol), next);
        }
    }

    static std::uint64_t pack(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
        return a | (static_cast<std::uint64_t>(b) << 21) | (static_cast<std::uint64_t>(c) << 42);
    }

    // The window at a position, through the tables; 0 if there is none, and then its lower orders go to `row`.
    template <bool Insert>
    std::uint32_t find(const Segment& segment, std::size_t at, Items& items, Recent& recent, Grams::Row& row) {
        const std::uint32_t* p = segment.points.data() + at;
        auto trigram = [&](std::size_t i) {
            Recent::Place& place = recent.places[i % 4];
            if (place.position != i) place = {i, find_trigram<Insert>(segment.points.data() + i, items)};
            return place.trigram;
        };
        const Trigram first = trigram(at);
        // Past the end: the trigram of nothing but END, id 0, so that a window may end there.
        const std::uint32_t second = at + 3 >= segment.length ? 0 : (Insert || first.id != UNKNOWN) ? trigram(at + 3).id : UNKNOWN;
        const std::uint64_t key = pair_key(first.id, second);
        const auto window = static_cast<std::uint32_t>(windows_.size() - 1);
        if constexpr (Insert) {
            const auto [found, fresh] = sixgrams_.find_or_add(key);
            if (!fresh) return *found;
            *found = window;
        } else if (first.id != UNKNOWN && second != UNKNOWN) {
            if (const std::uint32_t* found = sixgrams_.find(key)) return *found;
        }
        Item gram[WINDOW] = {first.items[0], first.items[1], first.items[2]};
        std::uint32_t prefix = first.id == UNKNOWN ? 0 : first.id;
        for (int n = 3; n < 5 && n < order_ && prefix != 0 && p[n] != END; ++n) {
            const Longer found = longer<Insert>(prefix, p[n], n, items);
            prefix = found.id;
            gram[n] = found.item;
        }
        if constexpr (!Insert) {
            std::copy(gram, gram + WINDOW, row.items);
            return 0;
        }
        // No table for order 6: a window that is not there is new, and so is its sixgram.
        if (order_ > 5 && p[5] != END) gram[5] = items.add(5);
        windows_.back() = {{gram[0], gram[1], gram[2], gram[3], gram[4], gram[5]}, p[5], 0};
        windows_.push_back(NONE);
        return window;
    }

    template <bool Insert>
    Trigram find_trigram(const std::uint32_t* p, Items& items) {
        const std::uint64_t key = pack(p[0], p[1], p[2]);
        if (const Trigram* found = trigrams_.find(key)) return *found;
        Trigram gram{{0, 0, 0}, UNKNOWN};
        gram.items[0] = lower<Insert>(pack(p[0], ABSENT, ABSENT), 0, items);
        if (order_ > 1 && p[1] != END) gram.items[1] = lower<Insert>(pack(p[0], p[1], ABSENT), 1, items);
        if constexpr (Insert) {
            if (order_ > 2 && p[2] != END) gram.items[2] = items.add(2);
            gram.id = ++trigram_ids_;
            trigrams_.insert(key, gram);
        }
        return gram;
    }

    template <bool Insert>
    Item lower(std::uint64_t key, int order, Items& items) {
        if (const Trigram* found = trigrams_.find(key)) return found->items[0];
        if constexpr (Insert) return trigrams_.insert(key, Trigram{{items.add(order), 0, 0}, UNKNOWN})->items[0];
        return 0;
    }

    template <bool Insert>
    Longer longer(std::uint32_t prefix, std::uint32_t symbol, int order, Items& items) {
        const std::uint64_t key = pair_key(prefix, symbol);
        if constexpr (Insert) {
            const auto [found, fresh] = longer_[order].find_or_add(key);
            if (fresh) found->id = found->item = items.add(order);
            return *found;
        }
        const Longer* found = longer_[order].find(key);
        return found ? *found : Longer{0, 0};
    }

    // Orders beyond 6, one by one; a row's window becomes the id of the n-gram that was found last.
    template <bool Insert>
    void extend(const Segment& segment, Items& items, Grams& grams, int order) {
        if (grams.items[order].size() < segment.length) grams.items[order].resize(segment.length);
        for (std::size_t i = 0; i < grams.counts[order]; ++i) {
            std::uint32_t& id = grams.rows[i].window;
            const Longer found = id == 0 ? Longer{0, 0} : longer<Insert>(id, segment.points[i + order], order, items);
            id = found.id;
            grams.items[order][i] = found.item;
        }
    }

    int order_;
    Vector<Window> windows_;   // the first and the last are none
    Table<Trigram> trigrams_;  // also unigrams and bigrams, under keys with ABSENT
    Table<std::uint32_t> sixgrams_, followers_;
    Table<Longer> longer_[MAX_ORDERS];
    std::uint32_t trigram_ids_ = 0;
};

}  // namespace mbrace
