// Numbering words and their n-grams exactly.
//
// Like a state of characters (characters.hpp), a word remembers which word came after it last, and the bigram of the two:
// where texts share a passage, one comparison of the letters numbers the word and the bigram.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "items.hpp"
#include "table.hpp"
#include "text.hpp"

namespace mbrace {

class Words {
  public:
    // `first`: the index, among all orders, of word order 1.
    Words(int order, int first) : order_(order), first_(first), entries_(1) {}

    // `Insert` as for Characters.
    template <bool Insert>
    void number(const Segment& segment, Items& items, Grams& grams) {
        const std::size_t length = segment.words.size();
        for (int n = 0; n < order_; ++n) {
            if (grams.items[first_ + n].size() < length) grams.items[first_ + n].resize(length);
            grams.counts[first_ + n] = length > static_cast<std::size_t>(n) ? length - n : 0;
        }
        if (grams.ids.size() < length) grams.ids.resize(length), grams.longer_ids.resize(length);
        std::uint32_t before = 0;
        for (std::size_t i = 0; i < length; ++i) {
            const SpelledWord word = spell(segment, segment.words[i]);
            std::uint32_t id = entries_[before].follow;
            if (id == 0 || !same_word(entries_[id], word)) {
                id = find<Insert>(word, items);
                const bool no_pair = order_ < 2 || before == 0 || id == 0;
                const LongerGram pair = no_pair ? LongerGram{0, 0} : longer<Insert>(before, id, 1, items);
                if (i > 0) set_pair(grams, i - 1, pair);
                if (Insert && before != 0) entries_[before].follow = id, entries_[before].pair = pair;
            } else {
                set_pair(grams, i - 1, entries_[before].pair);
            }
            grams.ids[i] = before = id;
            grams.items[first_][i] = entries_[id].item;
        }
        for (int n = 2; n < order_; ++n) extend<Insert>(items, grams, n);
    }

    std::size_t bytes() const {
        std::size_t total = short_.bytes() + long_.bytes() + 4 * letters_.size() + sizeof(Entry) * entries_.size();
        for (const auto& table : longer_) total += table.bytes();
        return total;
    }

  private:
    static constexpr std::uint64_t NO_KEY = 0;  // a short word has its length in the key

    struct Entry {
        std::uint64_t key = NO_KEY;           // for a short word
        std::uint32_t begin = 0, length = 0;  // for another word: its range of letters_
        Item item = 0;
        std::uint32_t follow = 0;  // the word that came after it last, and the bigram with it
        LongerGram pair{0, 0};
    };

    // A word of up to seven one-byte letters is its own key, with its length in the eighth byte.
    struct SpelledWord {
        std::uint64_t key;
        const std::uint32_t* letters;
        std::uint32_t length;
    };

    static constexpr std::uint64_t reversed_bytes(std::uint64_t value) {
        std::uint64_t out = 0;
        for (int byte = 0; byte < 8; ++byte, value >>= 8) out = out << 8 | (value & 0xFF);
        return out;
    }

    static SpelledWord spell(const Segment& segment, const Word& range) {
        const std::uint32_t* letters = segment.points.data() + range.begin;
        const std::uint32_t length = range.end - range.begin;
        if (length > 7) return {NO_KEY, letters, length};
        std::uint64_t key = 0;
        if (segment.narrow) {
            std::memcpy(&key, segment.bytes.data() + range.begin, 8);
            if constexpr (std::endian::native == std::endian::big) key = reversed_bytes(key);
            key &= (1ull << 8 * length) - 1;
        } else {
            std::uint32_t all = 0;
            for (std::uint32_t i = 0; i < length; ++i) {
                key |= static_cast<std::uint64_t>(letters[i]) << 8 * i;
                all |= letters[i];
            }
            if (all > 255) return {NO_KEY, letters, length};
        }
        return {key | static_cast<std::uint64_t>(length) << 56, letters, length};
    }

    bool same_word(const Entry& entry, const SpelledWord& word) const {
        if (entry.key != word.key) return false;
        if (word.key != NO_KEY) return true;
        return entry.length == word.length &&
               std::memcmp(letters_.data() + entry.begin, word.letters, 4 * word.length) == 0;
    }

    void set_pair(Grams& grams, std::size_t at, const LongerGram& pair) const {
        if (order_ < 2) return;
        grams.longer_ids[at] = pair.id;
        grams.items[first_ + 1][at] = pair.item;
    }

    template <bool Insert>
    std::uint32_t find(const SpelledWord& word, Items& items) {
        if (word.key != NO_KEY) {
            if (const std::uint32_t* found = short_.find(word.key)) return *found;
            if constexpr (!Insert) return 0;
            return *short_.insert(word.key, add({word.key, 0, 0, items.add(first_)}));
        }
        // The hash only suggests an entry; the code points decide.
        std::uint64_t hash = word.length;
        for (std::uint32_t i = 0; i < word.length; ++i) hash = (hash ^ word.letters[i]) * 0xD6E8FEB86659FD93ull;
        hash = (hash ^ (hash >> 29)) >> 1;  // the free key has the top bit
        while (const std::uint32_t* found = long_.find(hash)) {
            if (same_word(entries_[*found], word)) return *found;
            hash = (hash + 1) & (~0ull >> 1);
        }
        if constexpr (!Insert) return 0;
        const auto begin = static_cast<std::uint32_t>(letters_.size());
        letters_.insert(letters_.end(), word.letters, word.letters + word.length);
        return *long_.insert(hash, add({NO_KEY, begin, word.length, items.add(first_)}));
    }

    std::uint32_t add(const Entry& entry) {
        entries_.push_back(entry);
        return static_cast<std::uint32_t>(entries_.size() - 1);
    }

    // An n-gram of order - 1 and one word more; `order` counts from 0.
    template <bool Insert>
    LongerGram longer(std::uint32_t prefix, std::uint32_t word, int order, Items& items) {
        const std::uint64_t key = pair_key(prefix, word);
        if (const LongerGram* found = longer_[order].find(key)) return *found;
        if constexpr (Insert) {
            const Item item = items.add(first_ + order);
            return *longer_[order].insert(key, {item, item});
        }
        return {0, 0};
    }

    template <bool Insert>
    void extend(Items& items, Grams& grams, int order) {
        for (std::size_t i = 0; i < grams.counts[first_ + order]; ++i) {
            const std::uint32_t prefix = grams.longer_ids[i], last = grams.ids[i + order];
            const bool unknown = prefix == 0 || last == 0;
            const LongerGram found = unknown ? LongerGram{0, 0} : longer<Insert>(prefix, last, order, items);
            grams.longer_ids[i] = found.id;
            grams.items[first_ + order][i] = found.item;
        }
    }

    int order_, first_;
    Vector<Entry> entries_;              // by id; entry 0 is no word
    Table<std::uint32_t> short_, long_;  // by key, by hash
    Table<LongerGram> longer_[MAX_ORDERS];
    Vector<std::uint32_t> letters_;
};

}  // namespace mbrace
