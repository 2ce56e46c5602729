// The instruction sets that this machine has.
#include "count.hpp"

namespace mbrace {

const std::vector<const Variant*>& variants() {
    static const std::vector<const Variant*> available = [] {
        std::vector<const Variant*> list;
#if defined(MBRACE_X86)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
            list.push_back(&avx512_variant);
        }
        if (__builtin_cpu_supports("avx2")) list.push_back(&avx2_variant);
#elif defined(MBRACE_ARM)
        list.push_back(&neon_variant);
#endif
        list.push_back(&portable_variant);
        return list;
    }();
    return available;
}

}  // namespace mbrace
