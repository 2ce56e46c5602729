// Whole windows of sentences: indexes and scores, shared out over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "count.hpp"
#include "index.hpp"
#include "reference.hpp"
#include "survivors.hpp"

namespace mbrace {

// Calls work(worker, task) for every task. Threads are started for the call and joined: nothing to break on fork.
template <class Work>
void parallel(std::size_t tasks, int threads, Work work) {
    const int workers = static_cast<int>(std::min<std::size_t>(std::max(threads, 1), std::max<std::size_t>(tasks, 1)));
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failing;
    auto run = [&](int worker) {
        try {
            for (std::size_t task; (task = next.fetch_add(1)) < tasks;) work(worker, task);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(failing);
            failure = std::current_exception();
            next = tasks;
        }
    };
    std::vector<std::thread> others;
    for (int worker = 1; worker < workers; ++worker) others.emplace_back(run, worker);
    run(0);
    for (std::thread& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
}

using Clock = std::chrono::steady_clock;
inline double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// New references of one sentence against its survivors.
struct Ask {
    const Index* index;
    const std::int64_t* survivors;
    std::size_t survivor_count;
    const Text* references;
    std::size_t reference_count;
    float* scores;  // [survivor_count][reference_count]
};

constexpr std::size_t TILE = 8;  // references whose scores are put in their places together

// What a thread works with.
struct Worker {
    Desk desk;
    Looked looked[TILE];
    Survivors survivors;
    const Ask* ask = nullptr;  // that they are of
    Vector<float> scores;      // [block][TILE][rows]
    Clock::duration encoding{0}, counting{0};
};

// The workers of one call, kept for the next one: a step of a race is short beside making them.
class Workers {
  public:
    explicit Workers(int threads) : workers_(std::max(threads, 1)) {}

    // After work that did not fail: what failed may have left a desk untidy.
    void keep() {
        const std::lock_guard<std::mutex> lock(kept().mutex);
        for (auto& worker : workers_) {
            if (worker && worker->desk.bytes() < LARGE && kept().spare.size() < KEEP) {
                kept().spare.push_back(std::move(worker));
            }
        }
    }

    Worker& operator[](int which) {
        std::unique_ptr<Worker>& worker = workers_[which];
        if (!worker) worker = take();
        return *worker;
    }
    auto begin() { return workers_.begin(); }
    auto end() { return workers_.end(); }

  private:
    static constexpr std::size_t KEEP = 64, LARGE = std::size_t{1} << 21;
    struct Kept {
        std::mutex mutex;
        std::vector<std::unique_ptr<Worker>> spare;
    };
    static Kept& kept() {
        static Kept* all = new Kept;  // never destroyed, as the pool
        return *all;
    }
    static std::unique_ptr<Worker> take() {
        const std::lock_guard<std::mutex> lock(kept().mutex);
        if (kept().spare.empty()) return std::make_unique<Worker>();
        std::unique_ptr<Worker> worker = std::move(kept().spare.back());
        kept().spare.pop_back();
        return worker;
    }

    std::vector<std::unique_ptr<Worker>> workers_;
};

// One index for the hypotheses of each sentence.
inline std::vector<std::shared_ptr<Index>> build_indexes(const Options& options,
                                                         const std::vector<const std::vector<Text>*>& sentences,
                                                         int threads) {
    std::vector<std::shared_ptr<Index>> indexes(sentences.size());
    Workers workers(threads);
    parallel(sentences.size(), threads, [&](int which, std::size_t i) {
        indexes[i] = std::make_shared<Index>(options, *sentences[i], workers[which].desk);
    });
    workers.keep();
    return indexes;
}

// Returns the share of the time that went into reading and numbering references (the rest is per pair).
inline double score_window(const std::vector<Ask>& asks, const Formula& formula, const Variant& variant, int threads) {
    constexpr std::size_t CHUNK = 32;  // references to a task: small enough to balance, large beside a start
    struct Task {
        std::uint32_t ask;
        std::uint32_t first;
    };
    std::vector<Task> tasks;
    for (std::size_t a = 0; a < asks.size(); ++a) {
        for (std::size_t first = 0; first < asks[a].reference_count && asks[a].survivor_count; first += CHUNK) {
            tasks.push_back({static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(first)});
        }
    }
    Workers workers(threads);
    parallel(tasks.size(), threads, [&](int which, std::size_t t) {
        Worker& worker = workers[which];
        const Ask& ask = asks[tasks[t].ask];
        Clock::time_point before = Clock::now();
        const Survivors& survivors = worker.survivors;
        if (worker.ask != &ask) {
            worker.survivors.choose(*ask.index, ask.survivors, ask.survivor_count, ask.reference_count, variant.spread);
            worker.ask = &ask;
        }
        const std::size_t size = survivors.size(), tile = TILE * size;
        const Count count = survivors.few() ? variant.count_few : variant.count;
        if (worker.scores.size() < survivors.blocks() * tile) worker.scores.resize(survivors.blocks() * tile);
        const std::size_t end = std::min(ask.reference_count, tasks[t].first + CHUNK);
        for (std::size_t first = tasks[t].first; first < end; first += TILE) {
            const std::size_t some = std::min(TILE, end - first);
            for (std::size_t r = 0; r < some; ++r) worker.looked[r].look_up(*ask.index, ask.references[first + r], worker.desk);
            const Clock::time_point looked_up = Clock::now();
            for (std::size_t block = 0; block < survivors.blocks(); ++block) {
                if (survivors.groups(block) == 0) continue;
                for (std::size_t r = 0; r < some; ++r) {
                    count(formula, survivors.rows(block), worker.looked[r].view(), survivors.groups(block),
                          worker.scores.data() + block * tile + r * size);
                }
            }
            for (std::size_t s = 0; s < ask.survivor_count; ++s) {
                const std::size_t row = survivors.few() ? s : ask.survivors[s];
                const float* from = worker.scores.data() + row / size * tile + row % size;
                float* to = ask.scores + s * ask.reference_count + first;
                for (std::size_t r = 0; r < some; ++r) to[r] = from[r * size];
            }
            const Clock::time_point counted = Clock::now();
            worker.encoding += looked_up - before;
            worker.counting += counted - looked_up;
            before = counted;
        }
    });
    double encoding = 0, counting = 0;
    for (const auto& worker : workers) {
        if (!worker) continue;
        encoding += seconds(worker->encoding);
        counting += seconds(worker->counting);
        worker->encoding = worker->counting = {};
        worker->ask = nullptr;
    }
    workers.keep();
    return encoding + counting > 0 ? encoding / (encoding + counting) : 0;
}

// Aligned pairs: scores[i] of (hypotheses[i], references[i]), and totals[order] = n-grams of the hypotheses (where the
// reference has any), of the references, and matches: the sufficient statistics of the corpus score.
inline void score_pairs(const Options& options, const Formula& formula, const std::vector<Text>& hypotheses,
                        const std::vector<Text>& references, const Variant& variant, int threads, float* scores,
                        std::int64_t* totals) {
    constexpr std::size_t CHUNK = 64;
    const int orders = options.orders();
    std::mutex adding;
    Workers workers(threads);
    parallel((hypotheses.size() + CHUNK - 1) / CHUNK, threads, [&](int which, std::size_t t) {
        Desk& desk = workers[which].desk;
        Looked& looked = workers[which].looked[0];
        std::vector<std::int64_t> own(3 * orders, 0);
        float score[ROWS];
        for (std::size_t i = t * CHUNK; i < std::min(hypotheses.size(), (t + 1) * CHUNK); ++i) {
            const Index index(options, {hypotheses[i]}, desk);
            const Rows rows = index.rows(0);
            looked.look_up(index, references[i], desk);
            const Reference reference = looked.view();
            variant.count(formula, rows, reference, 1, score);
            scores[i] = score[0];
            for (int n = 0; n < orders; ++n) {
                const auto length = static_cast<std::int64_t>(reference.lengths[n]);
                if (length > 0) own[3 * n] += static_cast<std::int64_t>(rows.lengths[n * ROWS]);
                own[3 * n + 1] += length;
                for (std::uint32_t j = 0; j < reference.counts[n]; ++j) {
                    own[3 * n + 2] += rows.columns[n][reference.items[n][j]].words[0] & 1;
                }
            }
        }
        const std::lock_guard<std::mutex> lock(adding);
        for (int k = 0; k < 3 * orders; ++k) totals[k] += own[k];
    });
    workers.keep();
}

}  // namespace mbrace
