#include "bleu.hpp"

#include <algorithm>
#include <cstring>

#include "parallel.hpp"

namespace mbrace {

// By its spelling: the hash only suggests an entry; the code points decide.
template <bool Insert>
std::uint32_t BleuIndex::word(const Tokens& tokens, std::size_t which) {
    const std::uint32_t* letters = tokens.points.data() + tokens.words[which].begin;
    const std::uint32_t length = tokens.words[which].end - tokens.words[which].begin;
    std::uint64_t hash = length;
    for (std::uint32_t i = 0; i < length; ++i) hash = (hash ^ letters[i]) * 0xD6E8FEB86659FD93ull;
    hash = (hash ^ (hash >> 29)) >> 1;  // the free key has the top bit
    while (const std::uint32_t* found = words_.find(hash)) {
        const Spelling& known = spellings_[*found];
        if (known.length == length && std::memcmp(letters_.data() + known.begin, letters, 4 * length) == 0) {
            return known.gram;
        }
        hash = (hash + 1) & (~0ull >> 1);
    }
    if constexpr (!Insert) return 0;
    const auto begin = static_cast<std::uint32_t>(letters_.size());
    letters_.insert(letters_.end(), letters, letters + length);
    words_.insert(hash, static_cast<std::uint32_t>(spellings_.size()));
    spellings_.push_back({begin, length, grams_});
    return grams_++;
}

template <bool Insert>
std::uint32_t BleuIndex::longer(std::uint32_t prefix, std::uint32_t last) {
    if (prefix == 0 || last == 0) return 0;
    const std::uint64_t key = pair_key(prefix, last);
    if (const std::uint32_t* found = longer_.find(key)) return *found;
    if constexpr (!Insert) return 0;
    return *longer_.insert(key, grams_++);
}

// Equal n-grams are put together.
void BleuIndex::count_grams(BleuReader& reader, std::size_t count, std::vector<CountedGram>& bag) const {
    if (reader.entries.size() < grams_) reader.entries.resize(2 * grams_);
    bag.clear();
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t gram = reader.gram_numbers[i];
        if (gram == 0) continue;
        std::uint32_t& entry = reader.entries[gram];
        if (entry == 0) {
            bag.push_back({gram, 0});
            entry = static_cast<std::uint32_t>(bag.size());
        }
        ++bag[entry - 1].count;
    }
    for (const CountedGram& counted : bag) reader.entries[counted.gram] = 0;
}

template <bool Insert>
void BleuIndex::read(const Text& text, BleuReader& reader) {
    reader.tokens.read(text, tokenizer_);
    const std::size_t length = reader.tokens.words.size();
    reader.bag.length = length;
    reader.word_numbers.resize(length);
    for (std::size_t i = 0; i < length; ++i) reader.word_numbers[i] = word<Insert>(reader.tokens, i);
    reader.gram_numbers = reader.word_numbers;
    for (int n = 0; n < order_; ++n) {
        const std::size_t count = length > static_cast<std::size_t>(n) ? length - n : 0;
        for (std::size_t i = 0; n > 0 && i < count; ++i) {
            reader.gram_numbers[i] = longer<Insert>(reader.gram_numbers[i], reader.word_numbers[i + n]);
        }
        count_grams(reader, count, reader.bag.grams[n]);
    }
}

void BleuIndex::add(const Text& hypothesis, BleuReader& reader) {
    read<true>(hypothesis, reader);
    for (int n = 0; n < order_; ++n) {
        counted_.insert(counted_.end(), reader.bag.grams[n].begin(), reader.bag.grams[n].end());
    }
    lengths_.push_back(reader.bag.length);
    ends_.push_back(counted_.size());
}

void BleuIndex::look_up(const Text& text, BleuReader& reader) const {
    const_cast<BleuIndex*>(this)->read<false>(text, reader);
}

namespace {

// The hypotheses of an ask by n-gram.
class HypothesesOfGrams {
  public:
    struct Entry {
        std::uint32_t row;  // index into the ask's rows
        std::uint32_t count;
    };

    void build(const BleuAsk& ask) {
        starts_.assign(ask.index->grams() + 1, 0);
        for (std::size_t i = 0; i < ask.row_count; ++i) {
            const auto row = static_cast<std::size_t>(ask.rows[i]);
            for (const CountedGram* c = ask.index->begin(row); c != ask.index->end(row); ++c) ++starts_[c->gram + 1];
        }
        for (std::size_t gram = 1; gram < starts_.size(); ++gram) starts_[gram] += starts_[gram - 1];
        entries_.resize(starts_.back());
        next_.assign(starts_.begin(), starts_.end() - 1);
        for (std::size_t i = 0; i < ask.row_count; ++i) {
            const auto row = static_cast<std::size_t>(ask.rows[i]);
            for (const CountedGram* c = ask.index->begin(row); c != ask.index->end(row); ++c) {
                entries_[next_[c->gram]++] = {static_cast<std::uint32_t>(i), c->count};
            }
        }
    }

    const Entry* begin(std::uint32_t gram) const { return entries_.data() + starts_[gram]; }
    const Entry* end(std::uint32_t gram) const { return entries_.data() + starts_[gram + 1]; }

  private:
    std::vector<std::size_t> starts_, next_;
    std::vector<Entry> entries_;
};

}  // namespace

void add_hypotheses(const std::vector<BleuIndex*>& indexes, const std::vector<const std::vector<Text>*>& texts,
                    int threads) {
    std::vector<BleuReader> readers(std::max(threads, 1));
    parallel(indexes.size(), threads, [&](int worker, std::size_t i) {
        for (const Text& text : *texts[i]) indexes[i]->add(text, readers[worker]);
    });
}

double score_bleu_window(const std::vector<BleuAsk>& asks, const BleuFormula& formula, int threads) {
    constexpr std::size_t CHUNK = 32;  // references per task
    struct Task {
        std::size_t ask, first;
    };
    struct Worker {
        BleuReader reader;
        std::vector<std::uint32_t> matches;  // [row][order]
        Clock::duration encoding{0}, counting{0};
    };
    std::vector<HypothesesOfGrams> by_gram(asks.size());
    parallel(asks.size(), threads, [&](int, std::size_t i) { by_gram[i].build(asks[i]); });
    std::vector<Task> tasks;
    for (std::size_t a = 0; a < asks.size(); ++a) {
        for (std::size_t first = 0; first < asks[a].reference_count; first += CHUNK) tasks.push_back({a, first});
    }
    std::vector<Worker> workers(std::max(threads, 1));
    parallel(tasks.size(), threads, [&](int which, std::size_t t) {
        Worker& worker = workers[which];
        const BleuAsk& ask = asks[tasks[t].ask];
        const HypothesesOfGrams& hypotheses = by_gram[tasks[t].ask];
        const int order = formula.order();
        const std::size_t end = std::min(ask.reference_count, tasks[t].first + CHUNK);
        for (std::size_t r = tasks[t].first; r < end; ++r) {
            const Clock::time_point started = Clock::now();
            ask.index->look_up(ask.references[r], worker.reader);
            const BagOfGrams& reference = worker.reader.bag;
            const Clock::time_point looked_up = Clock::now();
            worker.matches.assign(ask.row_count * order, 0);
            for (int n = 0; n < order; ++n) {
                std::uint32_t* matches = worker.matches.data() + n;
                for (const CountedGram& gram : reference.grams[n]) {
                    for (auto entry = hypotheses.begin(gram.gram); entry != hypotheses.end(gram.gram); ++entry) {
                        matches[entry->row * static_cast<std::size_t>(order)] += std::min(entry->count, gram.count);
                    }
                }
            }
            std::uint32_t totals[MAX_ORDERS];
            for (std::size_t i = 0; i < ask.row_count; ++i) {
                const std::size_t length = ask.index->length(static_cast<std::size_t>(ask.rows[i]));
                for (int n = 0; n < order; ++n) {
                    totals[n] = static_cast<std::uint32_t>(length - std::min<std::size_t>(length, n));
                }
                ask.scores[i * ask.reference_count + r] =
                    static_cast<float>(formula.score(worker.matches.data() + i * order, totals, static_cast<double>(length),
                                                     static_cast<double>(reference.length)));
            }
            worker.encoding += looked_up - started;
            worker.counting += Clock::now() - looked_up;
        }
    });
    double encoding = 0, counting = 0;
    for (const Worker& worker : workers) encoding += seconds(worker.encoding), counting += seconds(worker.counting);
    return encoding + counting > 0 ? encoding / (encoding + counting) : 0;
}

void bleu_statistics(Tokenizer tokenizer, int order, const std::vector<Text>& hypotheses,
                     const std::vector<Text>& references, int threads, std::int64_t* statistics) {
    constexpr std::size_t CHUNK = 64;  // pairs per task
    std::vector<BleuReader> readers(std::max(threads, 1));
    parallel((hypotheses.size() + CHUNK - 1) / CHUNK, threads, [&](int worker, std::size_t t) {
        BleuReader& reader = readers[worker];
        std::vector<std::uint32_t> counts;
        for (std::size_t i = t * CHUNK; i < std::min(hypotheses.size(), (t + 1) * CHUNK); ++i) {
            BleuIndex index(tokenizer, order);
            index.add(hypotheses[i], reader);
            counts.assign(index.grams(), 0);
            for (const CountedGram* c = index.begin(0); c != index.end(0); ++c) counts[c->gram] = c->count;
            index.look_up(references[i], reader);
            std::int64_t* own = statistics + i * (2 + 2 * order);
            const auto length = static_cast<std::int64_t>(index.length(0));
            own[0] = length;
            own[1] = static_cast<std::int64_t>(reader.bag.length);
            for (int n = 0; n < order; ++n) {
                std::int64_t matches = 0;
                for (const CountedGram& gram : reader.bag.grams[n]) matches += std::min(counts[gram.gram], gram.count);
                own[2 + n] = matches;
                own[2 + order + n] = std::max<std::int64_t>(length - n, 0);
            }
        }
    });
}

}  // namespace mbrace
