// The distinct hypotheses of a sentence as rows of bits, and blocks of references brought to the same numbering.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "count.hpp"
#include "numbering.hpp"
#include "text.hpp"

namespace mbrace {

// Where a text is in its repeated n-grams: the item of the latest occurrence, by the item that names the n-gram.
// All zero between two texts, so that one set of cursors serves a thread for every index.
struct Cursors {
    std::vector<Item> latest[MAX_ORDERS];
    std::vector<Item> touched;
};

inline float reciprocal(std::size_t length) { return length ? 1.0f / static_cast<float>(length) : 0.0f; }

// How many of the orders first .. first + orders - 1 have at least one n-gram.
inline float effective(const Grams& grams, int first, int orders) {
    int n = 0;
    while (n < orders && grams.counts[first + n] > 0) ++n;
    return static_cast<float>(n);
}

class Index {
  public:
    Index(const Options& options, const std::vector<Text>& hypotheses) : numbering_(options), size_(hypotheses.size()) {
        const int orders = options.orders();
        lengths_.reserve(size_ * orders);
        inverses_.reserve(size_ * orders);
        effective_.reserve(size_ * 2);
        std::vector<std::uint64_t> ragged;          // rows one after another, each as wide as the numbering was then
        std::vector<std::uint32_t> widths;          // [row][orders]
        std::vector<std::uint64_t> bits[MAX_ORDERS];
        Segment segment;
        Grams grams;
        Cursors cursors;
        for (const Text& text : hypotheses) {
            segment.read(text, options.whitespace, options.word_order > 0);
            numbering_.number<true>(segment, grams);
            add_lengths(grams);
            for (int n = 0; n < orders; ++n) {
                mark_new(grams, n, bits[n], cursors);
                widths.push_back(static_cast<std::uint32_t>(bits[n].size()));
                ragged.insert(ragged.end(), bits[n].begin(), bits[n].end());
                std::fill(bits[n].begin(), bits[n].end(), 0);
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

    void mark_new(const Grams& grams, int n, std::vector<std::uint64_t>& bits, Cursors& cursors) {
        const Item* items = grams.items[n].data();
        std::vector<Item>& latest = cursors.latest[n];
        if (latest.size() < numbering_.items(n)) latest.resize(numbering_.items(n) * 2);
        if (bits.size() * 64 < numbering_.items(n)) bits.resize((numbering_.items(n) + 63) / 64);
        for (std::size_t i = 0; i < grams.counts[n]; ++i) {
            Item item = items[i];
            if (bits[item >> 6] >> (item & 63) & 1) {
                if (latest[item] == 0) cursors.touched.push_back(item);
                const Item again = numbering_.next_or_new(n, latest[item] ? latest[item] : item);
                if (bits.size() * 64 <= again) bits.resize((again + 64) / 64);
                latest[item] = again;
                item = again;
            }
            bits[item >> 6] |= 1ull << (item & 63);
        }
        for (Item item : cursors.touched) latest[item] = 0;
        cursors.touched.clear();
    }

    void settle(const std::vector<std::uint64_t>& ragged, const std::vector<std::uint32_t>& widths) {
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
    std::vector<std::uint64_t> words_;
    std::vector<float> lengths_, inverses_, effective_;
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
                mark(index.numbering(), n, bits_.data() + begins[n] * std::size_t{LANES} + lane);
            }
            effective_[lane] = effective(grams_, 0, options.char_order);
            effective_[LANES + lane] = effective(grams_, options.char_order, options.word_order);
        }
        gather(begins, orders);
        return {words_.data(), places_.data(), starts_, lengths_, inverses_, effective_, lanes};
    }

  private:
    static constexpr Item SPENT = ~0u;  // the hypotheses have no further occurrence of this n-gram

    void mark(const Numbering& numbering, int n, std::uint64_t* bits) {
        const Item* items = grams_.items[n].data();
        const Item* next = numbering.next(n);
        std::vector<Item>& latest = cursors_.latest[n];
        if (latest.size() < numbering.items(n)) latest.resize(numbering.items(n) * 2);
        for (std::size_t i = 0; i < grams_.counts[n]; ++i) {
            Item item = items[i];
            if (item == 0) continue;
            if (bits[(item >> 6) * LANES] >> (item & 63) & 1) {
                const Item before = latest[item];
                if (before == SPENT) continue;
                if (before == 0) cursors_.touched.push_back(item);
                const Item again = next[before ? before : item];
                latest[item] = again ? again : SPENT;
                if (again == 0) continue;
                item = again;
            }
            bits[(item >> 6) * LANES] |= 1ull << (item & 63);
        }
        for (Item item : cursors_.touched) latest[item] = 0;
        cursors_.touched.clear();
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
    std::vector<std::uint64_t> bits_, words_;
    std::vector<std::uint32_t> places_;
    std::uint32_t starts_[MAX_ORDERS + 1];
    float lengths_[MAX_ORDERS * LANES], inverses_[MAX_ORDERS * LANES], effective_[2 * LANES];
};

}  // namespace mbrace
