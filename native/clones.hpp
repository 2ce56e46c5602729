// Functions marked MBRACE_CLONES are compiled once for each level of x86-64, and the best one for this machine is chosen
// when the library is loaded. They compare, round and add in a fixed order, so all give the same bits. Only glibc can
// choose (musl has no such functions), and not under a sanitizer: elsewhere there is one version, and the mark means
// nothing. Only functions of an unnamed namespace are marked: Clang 14 gives other files the version for the newest
// processors, whatever the machine.
#pragma once

#include <cstdlib>  // so that __GLIBC__ is known

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MBRACE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MBRACE_CLONES
#endif
