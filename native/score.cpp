#include "score.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "parallel.hpp"

namespace mbrace {

Index::~Index() = default;

std::size_t Index::bytes() const {
    std::size_t total = numbering_.bytes();
    for (const auto& block : blocks_) {
        for (const auto& columns : block->columns) total += sizeof(Column) * columns.size();
        total += 4 * (block->lengths.size() + block->inverses.size()) + sizeof(block->effective);
    }
    return total;
}

namespace {

constexpr std::size_t MAX_WORKERS = 64, MAX_WORKER_BYTES = std::size_t{1} << 21;  // that wait for reuse

struct Reusable {
    std::mutex mutex;
    std::vector<std::unique_ptr<Worker>> workers;
};

Reusable& reusable() {
    static Reusable* all = new Reusable;  // never destroyed, like the pool
    return *all;
}

std::unique_ptr<Worker> reuse_or_make() {
    const std::lock_guard<std::mutex> lock(reusable().mutex);
    if (reusable().workers.empty()) return std::make_unique<Worker>();
    std::unique_ptr<Worker> worker = std::move(reusable().workers.back());
    reusable().workers.pop_back();
    return worker;
}

}  // namespace

Workers::Workers(int threads) : workers_(std::max(threads, 1)) {}
Workers::~Workers() = default;

void Workers::keep_for_reuse() {
    const std::lock_guard<std::mutex> lock(reusable().mutex);
    for (auto& worker : workers_) {
        if (worker && worker->buffers.bytes() < MAX_WORKER_BYTES && reusable().workers.size() < MAX_WORKERS) {
            reusable().workers.push_back(std::move(worker));
        }
    }
}

Worker& Workers::operator[](int index) {
    std::unique_ptr<Worker>& worker = workers_[index];
    if (!worker) worker = reuse_or_make();
    return *worker;
}

std::vector<std::shared_ptr<Index>> build_indexes(const Options& options,
                                                  const std::vector<const std::vector<Text>*>& sentences, int threads) {
    std::vector<std::shared_ptr<Index>> indexes(sentences.size());
    Workers workers(threads);
    parallel(sentences.size(), threads, [&](int worker_index, std::size_t i) {
        indexes[i] = std::make_shared<Index>(options, *sentences[i], workers[worker_index].buffers);
    });
    workers.keep_for_reuse();
    return indexes;
}

double finish_call(Workers& workers) {
    double encoding = 0, counting = 0;
    for (const auto& worker : workers) {
        if (!worker) continue;
        encoding += seconds(worker->encoding);
        counting += seconds(worker->counting);
        worker->encoding = worker->counting = {};
        worker->ask = nullptr;
    }
    workers.keep_for_reuse();
    return encoding + counting > 0 ? encoding / (encoding + counting) : 0;
}

void score_references(Worker& worker, const Ask& ask, std::size_t first, std::size_t end, const Formula& formula,
                      const Variant& variant) {
    Clock::time_point before = Clock::now();
    const Survivors& survivors = worker.survivors;
    if (worker.ask != &ask) {
        worker.survivors.choose(*ask.index, ask.survivors, ask.survivor_count, ask.reference_count, variant.spread);
        worker.ask = &ask;
    }
    const std::size_t size = survivors.size(), tile = TILE * size;
    const Count count = survivors.few() ? variant.count_few : variant.count;
    if (worker.scores.size() < survivors.blocks() * tile) worker.scores.resize(survivors.blocks() * tile);
    for (; first < end; first += TILE) {
        const std::size_t tile_references = std::min(TILE, end - first);
        for (std::size_t r = 0; r < tile_references; ++r) {
            worker.references[r].look_up(*ask.index, ask.references[first + r], worker.buffers);
        }
        const Clock::time_point looked_up = Clock::now();
        for (std::size_t block = 0; block < survivors.blocks(); ++block) {
            if (survivors.groups(block) == 0) continue;
            for (std::size_t r = 0; r < tile_references; ++r) {
                count(formula, survivors.rows(block), worker.references[r].view(), survivors.groups(block),
                      worker.scores.data() + block * tile + r * size);
            }
        }
        for (std::size_t s = 0; s < ask.survivor_count; ++s) {
            const std::size_t row = survivors.few() ? s : ask.survivors[s];
            const float* from = worker.scores.data() + row / size * tile + row % size;
            float* to = ask.scores + s * ask.reference_count + first;
            for (std::size_t r = 0; r < tile_references; ++r) to[r] = from[r * size];
        }
        const Clock::time_point counted = Clock::now();
        worker.encoding += looked_up - before;
        worker.counting += counted - looked_up;
        before = counted;
    }
}

double score_window(const std::vector<Ask>& asks, const Formula& formula, const Variant& variant, int threads) {
    // References per task: few, to balance threads, but many compared with the cost of a task.
    constexpr std::size_t CHUNK = 32;
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
    parallel(tasks.size(), threads, [&](int worker_index, std::size_t t) {
        const Ask& ask = asks[tasks[t].ask];
        const std::size_t first = tasks[t].first, end = std::min(ask.reference_count, first + CHUNK);
        score_references(workers[worker_index], ask, first, end, formula, variant);
    });
    return finish_call(workers);
}

void score_pairs(const Options& options, const Formula& formula, const std::vector<Text>& hypotheses,
                 const std::vector<Text>& references, const Variant& variant, int threads, float* scores,
                 std::int64_t* totals) {
    constexpr std::size_t CHUNK = 64;  // pairs per task
    const int orders = options.orders();
    std::mutex adding;
    Workers workers(threads);
    parallel((hypotheses.size() + CHUNK - 1) / CHUNK, threads, [&](int worker_index, std::size_t t) {
        TextBuffers& buffers = workers[worker_index].buffers;
        IndexedReference& indexed = workers[worker_index].references[0];
        std::vector<std::int64_t> chunk_totals(3 * orders, 0);
        float score[ROWS];
        for (std::size_t i = t * CHUNK; i < std::min(hypotheses.size(), (t + 1) * CHUNK); ++i) {
            const Index index(options, {hypotheses[i]}, buffers);
            const Rows rows = index.rows(0);
            indexed.look_up(index, references[i], buffers);
            const Reference reference = indexed.view();
            variant.count(formula, rows, reference, 1, score);
            scores[i] = score[0];
            for (int n = 0; n < orders; ++n) {
                const auto length = static_cast<std::int64_t>(reference.lengths[n]);
                if (length > 0) chunk_totals[3 * n] += static_cast<std::int64_t>(rows.lengths[n * ROWS]);
                chunk_totals[3 * n + 1] += length;
                for (std::uint32_t j = 0; j < reference.counts[n]; ++j) {
                    chunk_totals[3 * n + 2] += rows.columns[n][reference.items[n][j]].words[0] & 1;
                }
            }
        }
        const std::lock_guard<std::mutex> lock(adding);
        for (int k = 0; k < 3 * orders; ++k) totals[k] += chunk_totals[k];
    });
    workers.keep_for_reuse();
}

}  // namespace mbrace
