// The distinct hypotheses of a sentence as rows of bits, and blocks of references brought to the same numbering.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "count.hpp"
#include "numbering.hpp"
#include "text.hpp"

namespace mbrace {

// The k-th occurrence of an n-gram in a text is its k-th item. Characters and their pairs repeat all the time: there a
// cursor leads every n-gram from item to item, without a branch. Higher orders rarely repeat: there the bit itself says
// that an occurrence is not the first, and only then a cursor is looked at.
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

// Calls mark(k, i) for the positions of Orders neighbouring orders side by side: neighbours in one order set bits of
// the same word and wait for each other, those of different orders do not.
template <int Orders, class Mark>
inline void side_by_side(const Grams& grams, int first, Mark mark) {
    const std::size_t common = grams.counts[first + Orders - 1];  // the highest order has the fewest n-grams
    for (std::size_t i = 0; i < common; ++i) {
        for (int k = 0; k < Orders; ++k) mark(k, i);
    }
    for (int k = 0; k < Orders; ++k) {
        for (std::size_t i = common; i < grams.counts[first + k]; ++i) mark(k, i);
    }
}

// Shares the orders of a text out: `often(n)`, or `rarely(first)` for four, else for one of them at a time.
template <class Often, class Rarely4, class Rarely1>
inline void each_order(const Options& options, Often often, Rarely4 rarely4, Rarely1 rarely1) {
    int n = 0;
    for (; n < std::min(OFTEN_REPEATED, options.char_order); ++n) often(n);
    for (; n + 4 <= options.char_order; n += 4) rarely4(n);
    for (; n < options.orders(); ++n) rarely1(n);
}

inline float reciprocal(std::size_t length) { return length ? 1.0f / static_cast<float>(length) : 0.0f; }

// How many of the orders first .. first + orders - 1 have at least one n-gram.
inline float effective(const Grams& grams, int first, int orders) {
    int n = 0;
    while (n < orders && grams.counts[first + n] > 0) ++n;
    return static_cast<float>(n);
}

class Index {
  public:
    Index(const Options& options, const std::vector<Text>& hypotheses)
        : numbering_(options, longest(hypotheses), hypotheses.size()), size_(hypotheses.size()) {
        const int orders = options.orders();
        lengths_.reserve(size_ * orders);
        inverses_.reserve(size_ * orders);
        effective_.reserve(size_ * 2);
        Vector<std::uint64_t> ragged;        // rows one after another, each as wide as the numbering was then
        std::vector<std::uint32_t> widths;   // [row][orders]
        Vector<std::uint64_t> bits[MAX_ORDERS];
        Segment segment;
        Grams grams;
        Cursors cursors;
        for (const Text& text : hypotheses) {
            segment.read(text, options.whitespace, options.word_order > 0);
            numbering_.number<true>(segment, grams);
            add_lengths(grams);
            mark(grams, bits, cursors);
            for (int n = 0; n < orders; ++n) {
                const std::size_t width = (numbering_.items(n) + 63) / 64;
                widths.push_back(static_cast<std::uint32_t>(width));
                ragged.insert(ragged.end(), bits[n].begin(), bits[n].begin() + width);
                std::fill(bits[n].begin(), bits[n].begin() + width, 0);
            }
        }
        settle(ragged, widths);
    }

    std::size_t size() const { return size_; }
    const Options& options() const { return numbering_.options(); }
    const Numbering& numbering() const { return numbering_; }
    std::size_t stride() const { return begins_[options().orders()]; }
    const std::uint32_t* begins() const { return begins_; }
    Rows rows() const { return {words_.data(), stride(), lengths_.data(), inverses_.data(), effective_.data()}; }
    std::size_t bytes() const {
        return numbering_.bytes() + 8 * words_.size() + 4 * (lengths_.size() + inverses_.size() + effective_.size());
    }

  private:
    void add_lengths(const Grams& grams) {
        const Options& options = numbering_.options();
        for (int n = 0; n < options.orders(); ++n) {
            lengths_.push_back(static_cast<float>(grams.counts[n]));
            inverses_.push_back(reciprocal(grams.counts[n]));
        }
        effective_.push_back(effective(grams, 0, options.char_order));
        effective_.push_back(effective(grams, options.char_order, options.word_order));
    }

    static std::size_t longest(const std::vector<Text>& texts) {
        std::size_t length = 0;
        for (const Text& text : texts) length = std::max(length, text.length);
        return length;
    }

    // Sets the bits of one hypothesis, and numbers the occurrences that no earlier one had.
    void mark(const Grams& grams, Vector<std::uint64_t>* bits, Cursors& cursors) {
        for (int n = 0; n < options().orders(); ++n) {
            cursors.cover(numbering_, n);
            const std::size_t most = numbering_.items(n) + grams.counts[n];  // so that nothing moves meanwhile
            if (bits[n].size() * 64 < most) bits[n].resize(most / 64 * 2 + 1);
        }
        auto often = [&](int n) {
            const Item* items = grams.items[n].data();
            Item* latest = cursors.latest[n].data();
            std::uint64_t* words = bits[n].data();
            for (std::size_t i = 0; i < grams.counts[n]; ++i) {
                const Item before = latest[items[i]];
                const Item item = before == 0 ? items[i] : numbering_.next_or_new(n, before);
                latest[items[i]] = item;
                words[item >> 6] |= 1ull << (item & 63);
            }
            for (std::size_t i = 0; i < grams.counts[n]; ++i) latest[items[i]] = 0;
        };
        auto rarely = [&](int n, std::uint64_t* words, Item item) {
            if (words[item >> 6] >> (item & 63) & 1) [[unlikely]] {
                Item& latest = cursors.latest[n][item];
                if (latest == 0) cursors.touched[n].push_back(item);
                item = latest = numbering_.next_or_new(n, latest ? latest : item);
            }
            words[item >> 6] |= 1ull << (item & 63);
        };
        auto rarely4 = [&](int n) {
            const Item* items[4] = {grams.items[n].data(), grams.items[n + 1].data(), grams.items[n + 2].data(),
                                    grams.items[n + 3].data()};
            std::uint64_t* words[4] = {bits[n].data(), bits[n + 1].data(), bits[n + 2].data(), bits[n + 3].data()};
            side_by_side<4>(grams, n, [&](int k, std::size_t i) { rarely(n + k, words[k], items[k][i]); });
            for (int k = 0; k < 4; ++k) cursors.reset(n + k);
        };
        auto rarely1 = [&](int n) {
            for (std::size_t i = 0; i < grams.counts[n]; ++i) rarely(n, bits[n].data(), grams.items[n][i]);
            cursors.reset(n);
        };
        each_order(options(), often, rarely4, rarely1);
    }

    void settle(const Vector<std::uint64_t>& ragged, const std::vector<std::uint32_t>& widths) {
        const int orders = options().orders();
        for (int n = 0; n < orders; ++n) {
            begins_[n + 1] = begins_[n] + static_cast<std::uint32_t>((numbering_.items(n) + 63) / 64);
        }
        words_.assign(size_ * stride(), 0);
        const std::uint64_t* from = ragged.data();
        for (std::size_t row = 0; row < size_; ++row) {
            for (int n = 0; n < orders; ++n) {
                const std::uint32_t width = widths[row * orders + n];
                std::copy(from, from + width, words_.data() + row * stride() + begins_[n]);
                from += width;
            }
        }
    }

    Numbering numbering_;
    std::size_t size_;
    Vector<std::uint64_t> words_;
    Vector<float> lengths_, inverses_, effective_;
    std::uint32_t begins_[MAX_ORDERS + 1] = {};
};

// Up to eight references in the numbering of an index. One per thread, used again for every block.
class BlockBuilder {
  public:
    Block build(const Index& index, const Text* references, int lanes) {
        const Options& options = index.options();
        const int orders = options.orders();
        const std::uint32_t* begins = index.begins();
        if (bits_.size() < index.stride() * LANES) bits_.resize(index.stride() * LANES);
        std::fill(lengths_, lengths_ + orders * LANES, 0.0f);
        std::fill(inverses_, inverses_ + orders * LANES, 0.0f);
        std::fill(effective_, effective_ + 2 * LANES, 0.0f);
        for (int lane = 0; lane < lanes; ++lane) {
            segment_.read(references[lane], options.whitespace, options.word_order > 0);
            index.numbering().look_up(segment_, grams_);
            for (int n = 0; n < orders; ++n) {
                lengths_[n * LANES + lane] = static_cast<float>(grams_.counts[n]);
                inverses_[n * LANES + lane] = reciprocal(grams_.counts[n]);
            }
            mark(index, lane);
            effective_[lane] = effective(grams_, 0, options.char_order);
            effective_[LANES + lane] = effective(grams_, options.char_order, options.word_order);
        }
        gather(begins, orders);
        return {words_.data(), places_.data(), starts_, lengths_, inverses_, effective_, lanes};
    }

  private:
    // Sets the bits of one reference. What the hypotheses do not have, item 0 or an occurrence too many, changes nothing.
    void mark(const Index& index, int lane) {
        const Numbering& numbering = index.numbering();
        auto bits_of = [&](int n) { return bits_.data() + index.begins()[n] * std::size_t{LANES} + lane; };
        auto often = [&](int n) {
            cursors_.cover(numbering, n);
            const Item* items = grams_.items[n].data();
            const Item* next = numbering.next(n);
            Item* latest = cursors_.latest[n].data();
            std::uint64_t* words = bits_of(n);
            for (std::size_t i = 0; i < grams_.counts[n]; ++i) {
                const Item before = latest[items[i]];
                Item item = before == 0 ? items[i] : next[before];
                item = item == 0 ? before : item;  // spent: the same bit again
                latest[items[i]] = item;
                words[(item >> 6) * LANES] |= std::uint64_t{item != 0} << (item & 63);
            }
            for (std::size_t i = 0; i < grams_.counts[n]; ++i) latest[items[i]] = 0;
        };
        auto rarely = [&](int n, std::uint64_t* words, Item item) {
            const std::uint64_t bit = std::uint64_t{item != 0} << (item & 63);
            if (words[(item >> 6) * LANES] & bit) [[unlikely]] {
                repeat(numbering, n, words, item);
            } else {
                words[(item >> 6) * LANES] |= bit;
            }
        };
        auto rarely4 = [&](int n) {
            const Item* items[4] = {grams_.items[n].data(), grams_.items[n + 1].data(), grams_.items[n + 2].data(),
                                    grams_.items[n + 3].data()};
            std::uint64_t* words[4] = {bits_of(n), bits_of(n + 1), bits_of(n + 2), bits_of(n + 3)};
            side_by_side<4>(grams_, n, [&](int k, std::size_t i) { rarely(n + k, words[k], items[k][i]); });
            for (int k = 0; k < 4; ++k) cursors_.reset(n + k);
        };
        auto rarely1 = [&](int n) {
            for (std::size_t i = 0; i < grams_.counts[n]; ++i) rarely(n, bits_of(n), grams_.items[n][i]);
            cursors_.reset(n);
        };
        each_order(index.options(), often, rarely4, rarely1);
    }

    void repeat(const Numbering& numbering, int n, std::uint64_t* words, Item item) {
        cursors_.cover(numbering, n);
        Item& latest = cursors_.latest[n][item];
        if (latest == 0) cursors_.touched[n].push_back(item);
        const Item again = numbering.next(n)[latest ? latest : item];
        latest = again ? again : latest ? latest : item;  // spent: stays where it is
        if (again) words[(again >> 6) * LANES] |= 1ull << (again & 63);
    }

    // Keeps the words in which at least one reference has an item, and leaves bits_ zero for the next block.
    void gather(const std::uint32_t* begins, int orders) {
        const std::size_t stride = begins[orders];
        if (places_.size() < stride) {
            places_.resize(stride);
            words_.resize(stride * LANES);
        }
        std::uint32_t kept = 0;
        for (int n = 0; n < orders; ++n) {
            starts_[n] = kept;
            for (std::uint32_t w = begins[n]; w < begins[n + 1]; ++w) {
                std::uint64_t* word = bits_.data() + w * std::size_t{LANES};
                std::uint64_t any = 0;
                for (int lane = 0; lane < LANES; ++lane) any |= word[lane];
                if (any == 0) continue;
                std::copy(word, word + LANES, words_.data() + kept * std::size_t{LANES});
                std::fill(word, word + LANES, 0);
                places_[kept++] = w;
            }
        }
        starts_[orders] = kept;
    }

    Segment segment_;
    Grams grams_;
    Cursors cursors_;
    Vector<std::uint64_t> bits_, words_;
    Vector<std::uint32_t> places_;
    std::uint32_t starts_[MAX_ORDERS + 1];
    float lengths_[MAX_ORDERS * LANES], inverses_[MAX_ORDERS * LANES], effective_[2 * LANES];
};

}  // namespace mbrace
