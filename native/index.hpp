// The distinct hypotheses of a sentence, ready to be scored against any reference.
//
// Samples of a model share most of their n-grams and have many of their own: of 256 samples of 190 characters, three
// quarters of all items are in fewer than eight hypotheses, and make up a seventh of a text. So items are split when all
// hypotheses are in: *frequent* ones are columns of bits, *rare* ones have a list of the hypotheses that have them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "count.hpp"
#include "mark.hpp"
#include "numbering.hpp"
#include "text.hpp"

namespace mbrace {

// Moves the bits of a word under a mask together (Hacker's Delight 7-4), the mask's part computed once.
struct Compress {
    std::uint64_t mask, moves[6];
    int bits;

    explicit Compress(std::uint64_t kept) : mask(kept), bits(std::popcount(kept)) {
        std::uint64_t m = kept, gaps = ~kept << 1;
        for (int i = 0; i < 6; ++i) {
            std::uint64_t parity = gaps ^ (gaps << 1);
            for (int k = 2; k < 64; k *= 2) parity ^= parity << k;
            const std::uint64_t move = parity & m;
            moves[i] = move;
            m = (m ^ move) | (move >> (1 << i));
            gaps &= ~parity;
        }
    }

    std::uint64_t operator()(std::uint64_t x) const {
        x &= mask;
        for (int i = 0; i < 6; ++i) {
            const std::uint64_t moving = x & moves[i];
            x = (x ^ moving) | (moving >> (1 << i));
        }
        return x;
    }
};

class Index {
  public:
    static constexpr int POSTINGS = 4;  // lists of hypotheses are filled up to a multiple: a short one needs no loop

    Index(const Options& options, const std::vector<Text>& hypotheses)
        : numbering_(options, longest(hypotheses), hypotheses.size()), size_(hypotheses.size()) {
        const int orders = options.orders();
        lengths_.reserve(size_ * orders);
        inverses_.reserve(size_ * orders);
        effective_.reserve(size_ * 2);
        ends_.reserve(size_ * orders);
        Ragged ragged;
        Vector<std::uint64_t> bits[MAX_ORDERS];
        Segment segment;
        Grams grams;
        Cursors cursors;
        for (const Text& text : hypotheses) {
            segment.read(text, options.whitespace, options.word_order > 0);
            numbering_.number(segment, grams);
            add_lengths(grams);
            mark(grams, bits, cursors);
            for (int n = 0; n < orders; ++n) {
                const std::size_t width = (numbering_.items(n) + 63) / 64;
                ragged.widths.push_back(static_cast<std::uint32_t>(width));
                ragged.words.insert(ragged.words.end(), bits[n].begin(), bits[n].begin() + width);
                std::fill(bits[n].begin(), bits[n].begin() + width, 0);
            }
        }
        const int planes = rare_planes(longest(hypotheses));
        if (planes > 0) {
            split(ragged, planes);
        } else {
            settle(ragged);
        }
    }

    std::size_t size() const { return size_; }
    const Options& options() const { return numbering_.options(); }
    const Numbering& numbering() const { return numbering_; }
    std::size_t stride() const { return begins_[options().orders()]; }
    const std::uint32_t* begins() const { return begins_; }            // of the orders in a row of frequent items
    std::size_t frequent_words(int n) const { return begins_[n + 1] - begins_[n]; }
    std::size_t all_words(int n) const { return (numbering_.items(n) + 63) / 64; }  // frequent ones, then rare ones
    bool has_rare() const { return !rows_of_.empty(); }
    // The hypotheses with rare item i of order n, counted from the first rare one; size() stands for none.
    const std::uint32_t* rare_begin(int n, std::size_t i) const { return rows_of_.data() + rare_begins_[n][i]; }
    const std::uint32_t* rare_end(int n, std::size_t i) const { return rows_of_.data() + rare_begins_[n][i + 1]; }

    Rows rows() const {
        return {words_.data(), stride(), ends_.data(), lengths_.data(), inverses_.data(), effective_.data()};
    }
    std::size_t bytes() const {
        std::size_t total = numbering_.bytes() + 8 * words_.size() + 4 * rows_of_.size();
        for (const auto& begins : rare_begins_) total += 4 * begins.size();
        return total + 4 * (lengths_.size() + inverses_.size() + effective_.size());
    }

  private:
    static constexpr int MAX_PLANES = 6;
    static constexpr std::size_t RARE_SHARE = 40, FEW = 256;

    // Rows one after another, order after order, each as wide as the numbering was when the hypothesis came.
    struct Ragged {
        Vector<std::uint64_t> words;
        std::vector<std::uint32_t> widths;  // [row][orders]

        // Calls visit(row, n, words, width) for every order of every row.
        template <class Visit>
        void each(int orders, Visit visit) const {
            const std::uint64_t* at = words.data();
            for (std::size_t i = 0; i < widths.size(); ++i) {
                visit(i / orders, static_cast<int>(i % orders), at, widths[i]);
                at += widths[i];
            }
        }
    };

    static std::size_t longest(const std::vector<Text>& texts) {
        std::size_t length = 0;
        for (const Text& text : texts) length = std::max(length, text.length);
        return length;
    }

    void add_lengths(const Grams& grams) {
        const Options& options = numbering_.options();
        for (int n = 0; n < options.orders(); ++n) {
            lengths_.push_back(static_cast<float>(grams.counts[n]));
            inverses_.push_back(reciprocal(grams.counts[n]));
        }
        effective_.push_back(effective(grams, 0, options.char_order));
        effective_.push_back(effective(grams, options.char_order, options.word_order));
    }

    // Sets the bits of one hypothesis, and numbers the occurrences that no earlier one had.
    void mark(const Grams& grams, Vector<std::uint64_t>* bits, Cursors& cursors) {
        for (int n = 0; n < options().orders(); ++n) {
            cursors.cover(numbering_, n);
            const std::size_t most = numbering_.items(n) + grams.counts[n];  // so that nothing moves meanwhile
            if (bits[n].size() * 64 < most) bits[n].resize(most / 64 * 2 + 1);
        }
        Item* latest[OFTEN_REPEATED] = {cursors.latest[0].data(), cursors.latest[1].data()};
        auto often = [&](int n, std::uint64_t* words, Item item) {
            const Item before = latest[n][item];
            const Item following = numbering_.next(n)[before];  // also of 0: a load instead of a branch
            Item now = before == 0 ? item : following;
            if (now == 0) [[unlikely]] now = numbering_.next_or_new(n, before);
            latest[n][item] = now;
            words[now >> 6] |= 1ull << (now & 63);
        };
        auto rarely = [&](int n, std::uint64_t* words, Item item) {
            if (words[item >> 6] >> (item & 63) & 1) [[unlikely]] {
                Item& latest = cursors.latest[n][item];
                if (latest == 0) cursors.touched[n].push_back(item);
                item = latest = numbering_.next_or_new(n, latest ? latest : item);
            }
            words[item >> 6] |= 1ull << (item & 63);
        };
        mark_orders<1>(options(), grams, cursors, often, rarely, [&](int n) { return bits[n].data(); });
    }

    // An item is rare if at most 2^planes - 1 hypotheses have it. A rare one costs an increment for every (hypothesis,
    // reference) that share it, a frequent one its 64th of a word in every pair: they meet near a 40th of the hypotheses.
    // The split itself costs a tenth of numbering: worth it where pairs cost more than texts.
    int rare_planes(std::size_t longest_text) const {
        if (size_ <= FEW || longest_text > 60000) return 0;  // matches of rare items are counted in 16 bits
        return std::min(static_cast<int>(std::bit_width(size_ / RARE_SHARE + 1)) - 1, MAX_PLANES);
    }

    // By item, of one order: which are frequent, and of the others in how many hypotheses they are, in bit planes.
    struct Frequency {
        Vector<std::uint64_t> frequent;
        Vector<std::uint64_t> planes;  // [plane][word]

        std::uint32_t hypotheses(std::size_t item, int count) const {
            std::uint32_t total = 0;
            for (int k = 0; k < count; ++k) {
                total |= static_cast<std::uint32_t>(planes[k * frequent.size() + item / 64] >> (item % 64) & 1) << k;
            }
            return total;
        }
    };

    // All items as they are, all of them frequent.
    void settle(const Ragged& ragged) {
        for (int n = 0; n < options().orders(); ++n) {
            begins_[n + 1] = begins_[n] + static_cast<std::uint32_t>(all_words(n));
        }
        words_.assign(size_ * stride(), 0);
        ragged.each(options().orders(), [&](std::size_t row, int n, const std::uint64_t* words, std::uint32_t width) {
            std::copy(words, words + width, words_.data() + row * stride() + begins_[n]);
            ends_.push_back(begins_[n] + width);
        });
    }

    void split(const Ragged& ragged, int planes) {
        const int orders = options().orders();
        std::vector<Frequency> frequencies(orders);
        for (int n = 0; n < orders; ++n) {
            const std::size_t width = (numbering_.items(n) + 63) / 64;
            frequencies[n].frequent.resize(width);
            frequencies[n].planes.resize(width * planes);
        }
        count_hypotheses(ragged, planes, frequencies);
        Vector<Item> final[MAX_ORDERS];
        std::size_t sizes[MAX_ORDERS] = {};
        std::uint32_t postings = 0;
        for (int n = 0; n < orders; ++n) {
            Frequency& frequency = frequencies[n];
            frequency.frequent[0] |= 1;  // item 0, none, stays 0
            std::size_t kept = 0;
            for (std::uint64_t word : frequency.frequent) kept += std::popcount(word);
            begins_[n + 1] = begins_[n] + static_cast<std::uint32_t>((kept + 63) / 64);
            Item next_frequent = 0, next_rare = static_cast<Item>(64 * frequent_words(n));
            final[n].resize(numbering_.items(n));
            rare_begins_[n].reserve(numbering_.items(n) - kept + 1);
            for (std::size_t i = 0; i < final[n].size(); ++i) {
                const bool is_frequent = frequency.frequent[i / 64] >> (i % 64) & 1;
                final[n][i] = is_frequent ? next_frequent : next_rare;
                next_frequent += is_frequent;
                next_rare += !is_frequent;
                if (!is_frequent) {
                    rare_begins_[n].push_back(postings);
                    postings += (frequency.hypotheses(i, planes) + POSTINGS - 1) / POSTINGS * POSTINGS;
                }
            }
            rare_begins_[n].push_back(postings);
            sizes[n] = next_rare;
        }
        fill(ragged, frequencies, final, postings);
        numbering_.renumber(final, sizes);
    }

    // Counts for all 64 items of a word at once: planes[k] has bit k of the counters, what overflows them is frequent.
    void count_hypotheses(const Ragged& ragged, int planes, std::vector<Frequency>& frequencies) const {
        auto with = [&]<int Planes>() {
            ragged.each(options().orders(), [&](std::size_t, int n, const std::uint64_t* words, std::uint32_t width) {
                std::uint64_t* overflow = frequencies[n].frequent.data();
                const std::size_t plane = frequencies[n].frequent.size();
                std::uint64_t* counters = frequencies[n].planes.data();
                for (std::uint32_t w = 0; w < width; ++w) {
                    std::uint64_t carry = words[w];
                    for (int k = 0; k < Planes; ++k) {
                        const std::uint64_t before = counters[k * plane + w];
                        counters[k * plane + w] = before ^ carry;
                        carry &= before;
                    }
                    overflow[w] |= carry;
                }
            });
        };
        switch (planes) {
            case 0: return with.template operator()<0>();
            case 1: return with.template operator()<1>();
            case 2: return with.template operator()<2>();
            case 3: return with.template operator()<3>();
            case 4: return with.template operator()<4>();
            case 5: return with.template operator()<5>();
            default: return with.template operator()<MAX_PLANES>();
        }
    }

    // Rows of frequent items, and for every rare one the list of its hypotheses, filled up with one that is none.
    void fill(const Ragged& ragged, const std::vector<Frequency>& frequencies, const Vector<Item>* final,
              std::uint32_t postings) {
        const int orders = options().orders();
        std::vector<Compress> compress[MAX_ORDERS];
        Vector<std::uint32_t> filled[MAX_ORDERS];
        for (int n = 0; n < orders; ++n) {
            compress[n].reserve(frequencies[n].frequent.size());
            for (std::uint64_t word : frequencies[n].frequent) compress[n].emplace_back(word);
            filled[n] = rare_begins_[n];
        }
        words_.assign(size_ * stride() + 1, 0);
        rows_of_.assign(postings, static_cast<std::uint32_t>(size_));
        ragged.each(orders, [&](std::size_t row, int n, const std::uint64_t* words, std::uint32_t width) {
            std::uint64_t* out = words_.data() + row * stride() + begins_[n];
            const Item* numbers = final[n].data();
            const Item first_rare = static_cast<Item>(64 * frequent_words(n));
            int shift = 0;
            for (std::uint32_t w = 0; w < width; ++w) {
                const Compress& each = compress[n][w];
                const std::uint64_t kept = each(words[w]);
                *out |= kept << shift;
                shift += each.bits;
                if (shift >= 64) {
                    shift -= 64;
                    *++out |= shift ? kept >> (each.bits - shift) : 0;
                }
                for (std::uint64_t rest = words[w] & ~each.mask; rest; rest &= rest - 1) {
                    const Item item = numbers[64 * w + std::countr_zero(rest)];
                    rows_of_[filled[n][item - first_rare]++] = static_cast<std::uint32_t>(row);
                }
            }
            const auto end = static_cast<std::uint32_t>(out - (words_.data() + row * stride())) + (shift > 0);
            ends_.push_back(std::min(end, begins_[n + 1]));
        });
    }

    Numbering numbering_;
    std::size_t size_;
    Vector<std::uint64_t> words_;  // [row][stride]: the frequent items
    Vector<std::uint32_t> ends_;   // [row][orders]: see Rows
    Vector<float> lengths_, inverses_, effective_;
    std::uint32_t begins_[MAX_ORDERS + 1] = {};
    Vector<std::uint32_t> rare_begins_[MAX_ORDERS], rows_of_;
};

}  // namespace mbrace
