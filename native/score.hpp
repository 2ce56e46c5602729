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
#include "block.hpp"
#include "index.hpp"

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

// Returns the share of the time that went into reading and numbering references (the rest is per pair).
inline double score_window(const std::vector<Ask>& asks, const Formula& formula, CountBlock count, int threads) {
    constexpr std::size_t CHUNK = 4 * LANES;  // references to a task: small enough to balance, large beside a start
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
    struct Worker {
        BlockBuilder builder;
        Clock::duration encoding{0}, counting{0};
    };
    std::vector<std::unique_ptr<Worker>> workers(std::max(threads, 1));
    parallel(tasks.size(), threads, [&](int which, std::size_t t) {
        if (!workers[which]) workers[which] = std::make_unique<Worker>();
        Worker& worker = *workers[which];
        const Ask& ask = asks[tasks[t].ask];
        const Rows rows = ask.index->rows();
        const std::size_t end = std::min(ask.reference_count, tasks[t].first + CHUNK);
        Clock::time_point before = Clock::now();
        for (std::size_t first = tasks[t].first; first < end; first += LANES) {
            const int lanes = static_cast<int>(std::min<std::size_t>(LANES, end - first));
            const Block block = worker.builder.build(*ask.index, ask.references + first, lanes);
            const Clock::time_point built = Clock::now();
            count(formula, rows, block, ask.survivors, ask.survivor_count, ask.scores + first, ask.reference_count);
            const Clock::time_point counted = Clock::now();
            worker.encoding += built - before;
            worker.counting += counted - built;
            before = counted;
        }
    });
    double encoding = 0, counting = 0;
    for (const auto& worker : workers) {
        if (worker) encoding += seconds(worker->encoding), counting += seconds(worker->counting);
    }
    return encoding + counting > 0 ? encoding / (encoding + counting) : 0;
}

// Aligned pairs: scores[i] of (hypotheses[i], references[i]), and totals[order] = n-grams of the hypotheses (where the
// reference has any), of the references, and matches: the sufficient statistics of the corpus score.
inline void score_pairs(const Options& options, const Formula& formula, const std::vector<Text>& hypotheses,
                        const std::vector<Text>& references, CountBlock count, int threads, float* scores,
                        std::int64_t* totals) {
    constexpr std::size_t CHUNK = 64;
    const int orders = options.orders();
    std::mutex adding;
    parallel((hypotheses.size() + CHUNK - 1) / CHUNK, threads, [&](int, std::size_t t) {
        BlockBuilder builder;
        std::vector<std::int64_t> own(3 * orders, 0);
        const std::int64_t only = 0;
        for (std::size_t i = t * CHUNK; i < std::min(hypotheses.size(), (t + 1) * CHUNK); ++i) {
            const Index index(options, {hypotheses[i]});
            const Rows rows = index.rows();
            const Block block = builder.build(index, &references[i], 1);
            count(formula, rows, block, &only, 1, scores + i, 1);
            for (int n = 0; n < orders; ++n) {
                const auto length = static_cast<std::int64_t>(block.lengths[n * LANES]);
                if (length > 0) own[3 * n] += static_cast<std::int64_t>(rows.lengths[n]);
                own[3 * n + 1] += length;
                for (std::uint32_t j = block.begins[n]; j < block.begins[n + 1]; ++j) {
                    own[3 * n + 2] += std::popcount(rows.words[block.places[j]] & block.words[j * std::size_t{LANES}]);
                }
            }
        }
        const std::lock_guard<std::mutex> lock(adding);
        for (int k = 0; k < 3 * orders; ++k) totals[k] += own[k];
    });
}

}  // namespace mbrace
