// Which variants of the counting loop this machine can run.
#include "count.hpp"

namespace mbrace {

std::size_t variants(const Variant** list) {
    static Variant available[3];
    static const std::size_t count = [] {
        std::size_t n = 0;
#if defined(MBRACE_X86)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
            available[n++] = {"avx512", count_avx512};
        }
        if (__builtin_cpu_supports("avx2")) available[n++] = {"avx2", count_avx2};
#elif defined(MBRACE_ARM)
        available[n++] = {"neon", count_neon};
#endif
        available[n++] = {"portable", count_portable};
        return n;
    }();
    *list = available;
    return count;
}

}  // namespace mbrace
