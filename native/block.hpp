// Up to eight references in the numbering of an index, ready for the counting loop.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "count.hpp"
#include "index.hpp"
#include "mark.hpp"

namespace mbrace {

// One for each thread, used again for every block.
class BlockBuilder {
  public:
    Block build(const Index& index, const Text* references, int lanes) {
        const Options& options = index.options();
        const int orders = options.orders();
        std::size_t words = 0;
        for (int n = 0; n < orders; ++n) {
            begins_[n] = words;
            words += index.all_words(n);
        }
        if (bits_.size() < words * LANES) bits_.resize(words * LANES);
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
            effective_[lane] = effective(grams_, 0, options.char_order);
            effective_[LANES + lane] = effective(grams_, options.char_order, options.word_order);
            mark(index, lane);
        }
        gather_frequent(index, orders);
        if (index.has_rare()) count_rare(index, orders);
        const std::uint16_t* rare = index.has_rare() ? rare_.data() : nullptr;
        return {words_.data(), places_.data(), starts_, ranks_.data(), lengths_, inverses_, effective_, rare, lanes};
    }

  private:
    // Sets the bits of one reference. What the hypotheses do not have, item 0 or an occurrence too many, changes nothing.
    void mark(const Index& index, int lane) {
        const Numbering& numbering = index.numbering();
        auto bits_of = [&](int n) { return bits_.data() + begins_[n] * LANES + lane; };
        for (int n = 0; n < OFTEN_REPEATED; ++n) cursors_.cover(numbering, n);
        const Item* next[OFTEN_REPEATED] = {numbering.next(0), numbering.next(1)};
        Item* latest[OFTEN_REPEATED] = {cursors_.latest[0].data(), cursors_.latest[1].data()};
        auto often = [&](int n, std::uint64_t* words, Item item) {
            const Item before = latest[n][item];
            const Item following = next[n][before];  // also of 0: a load instead of a branch
            Item now = before == 0 ? item : following;
            now = now == 0 ? before : now;  // spent: the same bit again
            latest[n][item] = now;
            words[(now >> 6) * LANES] |= 1ull << (now & 63);
        };
        auto rarely = [&](int n, std::uint64_t* words, Item item) {
            const std::uint64_t bit = std::uint64_t{item != 0} << (item & 63);
            if (words[(item >> 6) * LANES] & bit) [[unlikely]] {
                repeat(numbering, n, words, item);
            } else {
                words[(item >> 6) * LANES] |= bit;
            }
        };
        mark_orders<LANES>(index.options(), grams_, cursors_, often, rarely, bits_of);
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
    void gather_frequent(const Index& index, int orders) {
        if (ranks_.size() < index.stride() + 1) {
            places_.resize(index.stride());
            ranks_.resize(index.stride() + 1);
            words_.resize(index.stride() * LANES);
        }
        std::uint32_t kept = 0;
        for (int n = 0; n < orders; ++n) {
            starts_[n] = kept;
            for (std::size_t w = 0; w < index.frequent_words(n); ++w) {
                ranks_[index.begins()[n] + w] = kept;
                std::uint64_t* word = bits_.data() + (begins_[n] + w) * LANES;
                std::uint64_t any = 0;
                for (int lane = 0; lane < LANES; ++lane) any |= word[lane];
                if (any == 0) continue;
                std::copy(word, word + LANES, words_.data() + kept * std::size_t{LANES});
                std::fill(word, word + LANES, 0);
                places_[kept++] = static_cast<std::uint32_t>(index.begins()[n] + w);
            }
        }
        starts_[orders] = kept;
        ranks_[index.stride()] = kept;
    }

    // Rare items: one increment for each hypothesis that has it. Words have one or no bit as a rule: no branch for that.
    void count_rare(const Index& index, int orders) {
        rare_.assign((index.size() + 1) * orders * LANES, 0);
        for (int n = 0; n < orders; ++n) {
            const std::size_t first = index.frequent_words(n), end = index.all_words(n);
            found_.resize((end - first) * 64 * LANES + 1);
            std::uint32_t* found = found_.data();
            for (std::size_t w = first; w < end; ++w) {
                std::uint64_t* word = bits_.data() + (begins_[n] + w) * LANES;
                for (int lane = 0; lane < LANES; ++lane) {
                    std::uint64_t rest = word[lane];
                    word[lane] = 0;
                    const std::uint32_t base = static_cast<std::uint32_t>((w - first) * 64 * LANES + lane);
                    do {
                        *found = base + static_cast<std::uint32_t>(std::countr_zero(rest)) * LANES;
                        found += rest != 0;
                        rest &= rest - 1;
                    } while (rest);
                }
            }
            std::uint16_t* counts = rare_.data() + n * LANES;
            for (const std::uint32_t* each = found_.data(); each < found; ++each) {
                const std::uint32_t item = *each / LANES, lane = *each % LANES;
                const std::uint32_t *row = index.rare_begin(n, item), *last = index.rare_end(n, item);
                do {
                    for (int k = 0; k < Index::POSTINGS; ++k) ++counts[row[k] * std::size_t(orders) * LANES + lane];
                    row += Index::POSTINGS;
                } while (row < last);
            }
        }
    }

    Segment segment_;
    Grams grams_;
    Cursors cursors_;
    Vector<std::uint64_t> bits_;   // [order][word][lane]
    std::size_t begins_[MAX_ORDERS] = {};
    Vector<std::uint64_t> words_;  // what the counting loop sees
    Vector<std::uint32_t> places_, ranks_;
    Vector<std::uint16_t> rare_;    // [row, and one for none][order][lane]
    Vector<std::uint32_t> found_;   // (rare item, lane) of one order
    std::uint32_t starts_[MAX_ORDERS + 1] = {};
    float lengths_[MAX_ORDERS * LANES], inverses_[MAX_ORDERS * LANES], effective_[2 * LANES];
};

}  // namespace mbrace
