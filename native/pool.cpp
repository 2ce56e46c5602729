#include "pool.hpp"

#include <bit>
#include <cstdlib>
#include <mutex>

#if defined(_WIN32)
#include <malloc.h>
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MBRACE_POOL_OFF  // so that sanitizers see every allocation
#endif

namespace mbrace {
namespace {

constexpr std::size_t MIN_BYTES = std::size_t{1} << 14;  // for smaller blocks malloc is as fast
constexpr std::size_t MAX_BYTES = std::size_t{1} << 26;  // for larger blocks new pages cost little of the time
constexpr std::size_t MAX_KEPT = std::size_t{1} << 27;   // bytes: at most 128 MiB wait for reuse

struct Blocks {
    std::mutex mutex;
    std::vector<void*> free[32];
    std::size_t kept = 0;

    Blocks() {
        for (auto& blocks : free) blocks.reserve(1024);  // give() must not throw
    }
};

Blocks& shared() {
    static Blocks* blocks = new Blocks;  // never destroyed: arrays may outlive the module
    return *blocks;
}

int size_class(std::size_t bytes) {
#if defined(MBRACE_POOL_OFF)
    return -1;
#else
    if (bytes < MIN_BYTES || bytes > MAX_BYTES) return -1;
    return std::bit_width(bytes - 1);
#endif
}

// Large blocks are aligned to cache lines, so that a column (count.hpp) is never in two of them. On Windows, aligned
// memory is released by a function of its own, so there all blocks are allocated as aligned ones.
#if defined(_WIN32)
void* allocate_small(std::size_t bytes) { return _aligned_malloc(bytes, alignof(std::max_align_t)); }
void* allocate_large(std::size_t bytes) { return _aligned_malloc(bytes, 64); }
void release(void* block) noexcept { _aligned_free(block); }
#else
void* allocate_small(std::size_t bytes) { return std::malloc(bytes); }
void* allocate_large(std::size_t bytes) { return std::aligned_alloc(64, bytes); }
void release(void* block) noexcept { std::free(block); }
#endif

}  // namespace

void* Pool::take(std::size_t bytes) {
    const int kind = size_class(bytes);
    if (kind >= 0) {
        Blocks& pool = shared();
        const std::lock_guard<std::mutex> lock(pool.mutex);
        if (!pool.free[kind].empty()) {
            void* block = pool.free[kind].back();
            pool.free[kind].pop_back();
            pool.kept -= std::size_t{1} << kind;
            return block;
        }
    }
    void* block = bytes < MIN_BYTES ? allocate_small(bytes ? bytes : 1)
                                    : allocate_large(kind >= 0 ? std::size_t{1} << kind : (bytes + 63) / 64 * 64);
    if (!block) throw std::bad_alloc();
    return block;
}

void Pool::give(void* block, std::size_t bytes) noexcept {
    const int kind = size_class(bytes);
    if (kind >= 0) {
        Blocks& pool = shared();
        const std::lock_guard<std::mutex> lock(pool.mutex);
        if (pool.kept + (std::size_t{1} << kind) <= MAX_KEPT && pool.free[kind].size() < pool.free[kind].capacity()) {
            pool.free[kind].push_back(block);
            pool.kept += std::size_t{1} << kind;
            return;
        }
    }
    release(block);
}

}  // namespace mbrace
