// Numbering n-grams exactly, without hashing strings.
//
// chrF needs, per order, the sum over n-grams of min(count in hypothesis, count in reference). The k-th occurrence of an
// n-gram in a sentence is its own *item* (n-gram, k); then that sum is |A & B| over sets of items. Items of an order are
// numbered 1, 2, ... in order of appearance in the hypotheses; 0 means "none". The item of an n-gram's first occurrence
// names the n-gram, and `next` leads from the k-th occurrence to the one after it.
//
// A position of a text finds its items of the orders 1 to 3 with one look-up of three packed code points, and those of
// the orders 4 to 6 with one look-up of (trigram here, trigram three further on). Only what a table has not seen goes
// the slow way, order by order through (n-gram, next code point).
//
// When all hypotheses are in, items are given their final numbers (see index.hpp). The ids that keys are made of stay.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "table.hpp"
#include "text.hpp"

namespace mbrace {

using Item = std::uint32_t;
constexpr int MAX_ORDERS = 32;  // character and word orders together

struct Options {
    int char_order = 6;
    int word_order = 2;
    bool whitespace = false;

    int orders() const { return char_order + word_order; }
};

// For every order and position of one text, the item that names the n-gram there (0: none, or not in the index).
struct Grams {
    std::vector<Item> items[MAX_ORDERS];
    std::size_t counts[MAX_ORDERS] = {};  // n-grams of the order in the text: what precision and recall divide by
    std::vector<std::uint32_t> trigram;          // ids of the padded trigrams
    std::vector<std::uint32_t> ids, longer_ids;  // ids of word unigrams, and of the order before the one at hand

    void reserve(std::size_t positions, int order) {
        if (items[order].size() < positions) items[order].resize(positions);
    }
};

class Numbering {
  public:
    // `length` and `texts`: the longest text and how many are to come. A guess of what they hold saves moving tables.
    Numbering(const Options& options, std::size_t length, std::size_t texts) : options_(options) {
        const std::size_t distinct = length + length * std::min<std::size_t>(texts, 256) / 16;
        for (int n = 0; n < options.orders(); ++n) {
            next_[n].reserve(distinct);
            next_[n].push_back(0);
        }
        if (options.char_order > 0) trigrams_.expect(distinct / 2);
        if (options.char_order > 3) {
            sixgrams_.expect(distinct);
            for (int n = 3; n < std::min(options.char_order, 5); ++n) longer_[n].expect(distinct);
        }
    }

    const Options& options() const { return options_; }
    std::size_t items(int order) const { return next_[order].size(); }  // the none item included
    const Item* next(int order) const { return next_[order].data(); }
    Item new_item(int order) {
        next_[order].push_back(0);
        return static_cast<Item>(next_[order].size() - 1);
    }
    Item next_or_new(int order, Item item) {
        Item following = next_[order][item];
        if (following == 0) {
            following = new_item(order);
            next_[order][item] = following;
        }
        return following;
    }

    // Final numbers: item i of an order becomes final[order][i], of `sizes[order]` numbers.
    void renumber(const Vector<Item>* final, const std::size_t* sizes) {
        trigrams_.each([&](std::uint64_t key, Trigram& gram) {
            const bool unigram = (key >> 21 & END) == ABSENT, bigram = (key >> 42 & END) == ABSENT;
            if (unigram || bigram) {
                gram.items[0] = final[unigram ? 0 : 1][gram.items[0]];
            } else {
                for (int n = 0; n < std::min(3, options_.char_order); ++n) gram.items[n] = final[n][gram.items[n]];
            }
        });
        sixgrams_.each([&](std::uint64_t, Sixgram& gram) {
            for (int n = 3; n < std::min(6, options_.char_order); ++n) gram.items[n - 3] = final[n][gram.items[n - 3]];
        });
        short_words_.each([&](std::uint64_t, Longer& word) { word.item = final[options_.char_order][word.item]; });
        words_.each([&](std::uint64_t, Spelling& word) { word.item = final[options_.char_order][word.item]; });
        for (int n = 0; n < options_.orders(); ++n) {
            longer_[n].each([&](std::uint64_t, Longer& gram) { gram.item = final[n][gram.item]; });
            Vector<Item> next(sizes[n]);
            for (std::size_t i = 0; i < next_[n].size(); ++i) next[final[n][i]] = final[n][next_[n][i]];
            next_[n] = std::move(next);
        }
    }

    // `Insert`: hypotheses number what is new. Otherwise (references) what is not there stays 0, and nothing changes.
    template <bool Insert>
    void number(const Segment& segment, Grams& grams) {
        const std::size_t length = segment.length;
        for (int n = 0; n < options_.char_order; ++n) {
            grams.counts[n] = length > static_cast<std::size_t>(n) ? length - n : 0;
            grams.reserve(length, n);
        }
        if (options_.char_order > 0) {
            for (int n = options_.char_order; n < 3; ++n) grams.reserve(length, MAX_ORDERS - 1 - n);
            trigrams<Insert>(segment, grams);
        }
        if (options_.char_order > 3) sixgrams<Insert>(segment, grams);
        for (int n = 6; n < options_.char_order; ++n) extend<Insert>(segment, grams, n);
        if (options_.word_order > 0) words<Insert>(segment, grams);
    }

    // Look-ups leave the numbering as it is.
    void look_up(const Segment& segment, Grams& grams) const { const_cast<Numbering*>(this)->number<false>(segment, grams); }

    std::size_t bytes() const {
        std::size_t total = trigrams_.bytes() + sixgrams_.bytes() + words_.bytes() + short_words_.bytes() + 4 * letters_.size();
        for (int n = 0; n < MAX_ORDERS; ++n) total += longer_[n].bytes() + 4 * next_[n].size();
        return total;
    }

  private:
    static constexpr std::uint32_t UNKNOWN = ~0u;

    struct Trigram {
        Item items[3];
        std::uint32_t id;
    };
    struct Sixgram {
        Item items[3];     // orders 4 to 6
        std::uint32_t id;  // of the order 6, for orders beyond
    };
    struct Longer {
        std::uint32_t id;  // the item's first number, never 0
        Item item;
    };
    struct Spelling {
        std::uint32_t begin, length;  // range of letters_
        std::uint32_t id;
        Item item;
    };

    static std::uint64_t pack(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
        return a | (static_cast<std::uint64_t>(b) << 21) | (static_cast<std::uint64_t>(c) << 42);
    }
    static std::uint64_t pair(std::uint32_t a, std::uint32_t b) {
        return (static_cast<std::uint64_t>(a) << 32) | b;
    }

    template <bool Insert>
    void trigrams(const Segment& segment, Grams& grams) {
        const std::uint32_t* p = segment.points.data();
        const std::size_t length = segment.length;
        const int top = options_.char_order;
        Item* out[3];
        for (int n = 0; n < 3; ++n) out[n] = grams.items[n < top ? n : MAX_ORDERS - 1 - n].data();
        if (grams.trigram.size() < length + 3) grams.trigram.resize(length + 3);
        std::uint32_t* ids = grams.trigram.data();
        std::uint64_t key = pack(END, p[0], p[1]);
        for (std::size_t i = 0; i < length; ++i) {
            key = (key >> 21) | (static_cast<std::uint64_t>(p[i + 2]) << 42);
            const Trigram* found = trigrams_.find(key);
            Trigram slow;
            if (found == nullptr) {
                slow = rare_trigram<Insert>(p + i, key);
                found = &slow;
            }
            ids[i] = found->id;
            for (int n = 0; n < 3; ++n) out[n][i] = found->items[n];
        }
        // Past the end: the trigram of nothing but END, id 0, so that a sixgram may end there.
        for (int n = 0; n < 3; ++n) ids[length + n] = 0;
    }

    template <bool Insert>
    Trigram rare_trigram(const std::uint32_t* p, std::uint64_t key) {
        Trigram gram{{0, 0, 0}, UNKNOWN};
        const int top = options_.char_order;
        gram.items[0] = lower<Insert>(pack(p[0], ABSENT, ABSENT), 0);
        if (top > 1 && p[1] != END) gram.items[1] = lower<Insert>(pack(p[0], p[1], ABSENT), 1);
        if constexpr (Insert) {
            if (top > 2 && p[2] != END) gram.items[2] = new_item(2);
            gram.id = ++trigram_ids_;
            trigrams_.insert(key, gram);
        }
        return gram;
    }

    template <bool Insert>
    Item lower(std::uint64_t key, int order) {
        if (const Trigram* found = trigrams_.find(key)) return found->items[0];
        if constexpr (Insert) return trigrams_.insert(key, Trigram{{new_item(order), 0, 0}, UNKNOWN})->items[0];
        return 0;
    }

    template <bool Insert>
    void sixgrams(const Segment& segment, Grams& grams) {
        const std::uint32_t* p = segment.points.data();
        const std::uint32_t* ids = grams.trigram.data();
        const int top = options_.char_order;
        Item* out[3];
        for (int n = 0; n < 3; ++n) {
            if (n + 3 >= top) grams.reserve(segment.length, MAX_ORDERS - 4 - n);
            out[n] = grams.items[n + 3 < top ? n + 3 : MAX_ORDERS - 4 - n].data();
        }
        if (grams.longer_ids.size() < segment.length) grams.longer_ids.resize(segment.length);
        for (std::size_t i = 0; i < segment.length; ++i) {
            const std::uint64_t key = pair(ids[i], ids[i + 3]);
            const Sixgram* found = nullptr;
            if (Insert || (ids[i] != UNKNOWN && ids[i + 3] != UNKNOWN)) found = sixgrams_.find(key);
            Sixgram slow;
            if (found == nullptr) {
                slow = rare_sixgram<Insert>(p + i, ids[i], key);
                found = &slow;
            }
            for (int n = 0; n < 3; ++n) out[n][i] = found->items[n];
            grams.longer_ids[i] = found->id;
        }
    }

    template <bool Insert>
    Sixgram rare_sixgram(const std::uint32_t* p, std::uint32_t trigram, std::uint64_t key) {
        Sixgram gram{{0, 0, 0}, 0};
        std::uint32_t prefix = trigram == UNKNOWN ? 0 : trigram;
        for (int n = 3; n < 5 && n < options_.char_order && prefix != 0 && p[n] != END; ++n) {
            const Longer found = longer<Insert>(prefix, p[n], n);
            prefix = found.id;
            gram.items[n - 3] = found.item;
        }
        if constexpr (Insert) {
            // No table for order 6: a sixgram whose key is not there is new, one that is looked up in vain is none.
            if (options_.char_order > 5 && p[5] != END) gram.id = gram.items[2] = new_item(5);
            sixgrams_.insert(key, gram);
        }
        return gram;
    }

    // (An n-gram of order - 1, one symbol more).
    template <bool Insert>
    Longer longer(std::uint32_t prefix, std::uint32_t symbol, int order) {
        const std::uint64_t key = pair(prefix, symbol);
        if (const Longer* found = longer_[order].find(key)) return *found;
        if constexpr (Insert) {
            const Item item = new_item(order);
            return *longer_[order].insert(key, {item, item});
        }
        return {0, 0};
    }

    // Character orders beyond 6.
    template <bool Insert>
    void extend(const Segment& segment, Grams& grams, int order) {
        for (std::size_t i = 0; i < grams.counts[order]; ++i) {
            std::uint32_t& id = grams.longer_ids[i];
            const Longer found = id == 0 ? Longer{0, 0} : longer<Insert>(id, segment.points[i + order], order);
            id = found.id;
            grams.items[order][i] = found.item;
        }
    }

    template <bool Insert>
    void words(const Segment& segment, Grams& grams) {
        const std::size_t length = segment.words.size();
        const int first = options_.char_order;
        grams.ids.resize(length);
        for (int n = 0; n < options_.word_order; ++n) {
            grams.reserve(length, first + n);
            grams.counts[first + n] = length > static_cast<std::size_t>(n) ? length - n : 0;
        }
        for (std::size_t i = 0; i < length; ++i) {
            const Longer found = word<Insert>(segment, segment.words[i], first);
            grams.ids[i] = found.id;
            grams.items[first][i] = found.item;
        }
        grams.longer_ids = grams.ids;
        for (int n = 1; n < options_.word_order; ++n) {
            for (std::size_t i = 0; i < grams.counts[first + n]; ++i) {
                const std::uint32_t prefix = grams.longer_ids[i], last = grams.ids[i + n];
                const Longer found = prefix == 0 || last == 0 ? Longer{0, 0} : longer<Insert>(prefix, last, first + n);
                grams.longer_ids[i] = found.id;
                grams.items[first + n][i] = found.item;
            }
        }
    }

    // A word of up to seven one-byte letters is its own key, with its length in the eighth byte.
    template <bool Insert>
    Longer word(const Segment& segment, const Word& range, int order) {
        const std::uint32_t* letters = segment.points.data() + range.begin;
        const std::uint32_t length = range.end - range.begin;
        if (length > 7) return spelling<Insert>(letters, length, order);
        std::uint64_t key;
        if (segment.narrow) {
            std::memcpy(&key, segment.bytes.data() + range.begin, 8);
            if constexpr (std::endian::native == std::endian::big) key = __builtin_bswap64(key);
            key &= (1ull << 8 * length) - 1;
        } else {
            std::uint32_t all = 0;
            key = 0;
            for (std::uint32_t i = 0; i < length; ++i) {
                key |= static_cast<std::uint64_t>(letters[i]) << 8 * i;
                all |= letters[i];
            }
            if (all > 255) return spelling<Insert>(letters, length, order);
        }
        key |= static_cast<std::uint64_t>(length) << 56;
        if (const Longer* found = short_words_.find(key)) return *found;
        if constexpr (Insert) {
            const Item item = new_item(order);
            return *short_words_.insert(key, {item, item});
        }
        return {0, 0};
    }

    // Any other by its spelling: the hash only proposes, the code points decide.
    template <bool Insert>
    Longer spelling(const std::uint32_t* letters, std::uint32_t length, int order) {
        std::uint64_t hash = length;
        for (std::uint32_t i = 0; i < length; ++i) hash = (hash ^ letters[i]) * 0xD6E8FEB86659FD93ull;
        hash = (hash ^ (hash >> 29)) >> 1;  // the free key has the top bit
        while (const Spelling* found = words_.find(hash)) {
            if (found->length == length && std::memcmp(letters_.data() + found->begin, letters, 4 * length) == 0) {
                return {found->id, found->item};
            }
            hash = (hash + 1) & (~0ull >> 1);
        }
        if constexpr (Insert) {
            const Item item = new_item(order);
            words_.insert(hash, {static_cast<std::uint32_t>(letters_.size()), length, item, item});
            letters_.insert(letters_.end(), letters, letters + length);
            return {item, item};
        }
        return {0, 0};
    }

    Options options_;
    Table<Trigram> trigrams_;  // also unigrams and bigrams, under keys with ABSENT
    Table<Sixgram> sixgrams_;
    Table<Longer> longer_[MAX_ORDERS];
    Table<Longer> short_words_;
    Table<Spelling> words_;
    Vector<std::uint32_t> letters_;
    Vector<Item> next_[MAX_ORDERS];
    std::uint32_t trigram_ids_ = 0;
};

}  // namespace mbrace
