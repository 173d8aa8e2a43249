// The twin of a kernel's sm90.cuh for a CPU: the same names, so that the kernel's own source runs unchanged, block by
// block.
//
// Every thread is a fiber. What hardware does for a warp together (wgmma, shuffles, ldmatrix, stmatrix) happens when
// its 32 lanes have arrived. What hardware does later (TMA, wgmma, bulk reductions) happens at the earliest moment, at
// the latest one that a wait allows, or in between at random, by `timing`; warps advance at random, each at its own
// pace. So a wrong index shows as a wrong number, a missing wait, fence or barrier as a wrong number under some seed, a
// wrong phase as a deadlock that is reported. Not modelled: how fast anything is, memory outside shared memory,
// wgmma.fence, the order of sums.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

// [batches, heads, rows, columns] with any strides (in elements) but of columns; boxes of 64 columns, 128-byte swizzle
struct alignas(64) TensorMap {
  const uint16_t* base;
  int32_t columns, rows, heads, box_rows;
  int64_t batch_step, head_step, row_step;
};

inline uint32_t float_bits(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
inline float bits_float(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

namespace cpu {
constexpr int SHARED_BYTES = 233472, BASE = 1024;   // 228 KB; dynamic shared memory starts at 1024
enum Timing { EARLY, LATE, RANDOM };

struct Product {   // one wgmma of one warp
  int n, ta, tb, b_rows, group; uint32_t a_desc, b_desc; bool a_in_regs, acc; float* d[32]; const uint32_t* a[32];
};
struct Warp {
  int arrived = 0;
  uint64_t generation = 0;
  const char* at = "";
  void* slot[32];
  std::deque<Product> products;
  int group = 0;
  double pace = 1;
};
struct Sum { float* dst; uint32_t src; int bytes; bool store; };
struct Place { const char* what = ""; int64_t number = -1; int parity = -1; };   // in_words, should it be told
struct Fiber {
  ucontext_t context; std::unique_ptr<char[]> stack; jmp_buf at_yield; bool begun = false, done = false;
  Place at; std::deque<Sum> sums;
  // shared memory written and not fenced for the asynchronous proxy yet
  std::vector<std::pair<uint32_t, int>> written;
};
struct Barrier { int expected = 0, pending = 0; int64_t bytes = 0; int phase = 0; };
struct Named { int arrived = 0; uint64_t generation = 0; };
struct Load { std::function<void()> run; uint32_t bar; int bytes; };

#ifdef TWIN   // compiled once; every kernel is linked with that
#define OF_TWIN
#else
#define OF_TWIN extern
#endif
OF_TWIN uint8_t *shared, *unfenced;
OF_TWIN std::vector<Fiber> fibers;
OF_TWIN std::vector<Warp> warps;
OF_TWIN std::map<uint32_t, Barrier> barriers;
OF_TWIN std::map<int, Named> named;
OF_TWIN std::vector<Load> loads;
OF_TWIN jmp_buf scheduler;
OF_TWIN int current, block, grid, timing;
OF_TWIN bool progress;
OF_TWIN std::mt19937 dice;
OF_TWIN std::string failure;
OF_TWIN std::function<void()> body;
extern const bool bf16;   // what 16-bit floats are; the kernel's file says it, for one twin serves both

inline void yield() { if (!_setjmp(fibers[current].at_yield)) _longjmp(scheduler, 1); }
[[noreturn]] void fail(const std::string& what);
[[noreturn]] void fail_elsewhere(const char* what);
[[noreturn]] void fail_out_of_bounds(uint32_t at);
void finish_products(int warp_index, int first_kept_group);
void add_sum(Fiber& f);
void settle(Barrier& b);
void issue_load(std::function<void()> run, uint32_t bar, int bytes);
const char* launch(int blocks, int threads, int how, int seed, std::function<void()> kernel);
inline Warp& warp() { return warps[current / 32]; }
inline int lane() { return current % 32; }
inline double roll() { return std::uniform_real_distribution<>()(dice); }

// `action` runs once, when all 32 lanes have arrived with their `mine`
template <class Mine, class Action> void together(const char* what, Mine& mine, Action action) {
  Warp& w = warp();
  if (w.arrived && std::strcmp(w.at, what)) fail_elsewhere(what);
  w.at = what; w.slot[lane()] = &mine; fibers[current].at = {what};
  if (++w.arrived == 32) {
    Mine* all[32]; for (int i = 0; i < 32; i++) all[i] = static_cast<Mine*>(w.slot[i]);
    action(all); w.arrived = 0; w.generation++; progress = true;
  } else for (const uint64_t g = w.generation; w.generation == g;) yield();
}

float half_to_float(uint16_t x);
uint16_t float_to_half(float x);
inline uint32_t check(uint32_t at, int bytes) {
  if (at < BASE || at + bytes > (uint32_t)SHARED_BYTES) fail_out_of_bounds(at);
  return at;
}
void generic_write(uint32_t at, const void* x, int bytes);
inline uint32_t swizzle(uint32_t at, bool rows_of_64) { return at ^ ((at >> 7 & (rows_of_64 ? 3 : 7)) << 4); }

// address of element (row, k) of an operand; transposed: k runs over rows of shared memory
inline uint32_t operand(uint32_t desc, int row, int k, int transposed, bool rows_of_64) {
  const uint32_t start = (desc & 0x3fff) << 4, panel = (desc >> 16 & 0x3fff) << 4, pitch = rows_of_64 ? 64 : 128,
                 wide = pitch / 2;
  const uint32_t at =
      transposed ? start + row % wide * 2 + row / wide * panel + k * pitch : start + row * pitch + k * 2;
  return swizzle(at, rows_of_64);
}
struct Index { unsigned x; };
inline Index thread_index() { return {(unsigned)current}; }
inline Index block_index() { return {(unsigned)block}; }
inline Index grid_size() { return {(unsigned)grid}; }


#ifdef TWIN
[[noreturn]] void fail(const std::string& what) {
  if (failure.empty()) failure = "block " + std::to_string(block) + " thread " + std::to_string(current) + ": " + what;
  _longjmp(scheduler, 1);
}
void fail_elsewhere(const char* what) { fail("at " + std::string(what) + " while its warp is at " + warp().at); }
void fail_out_of_bounds(uint32_t at) { fail("shared address " + std::to_string(at) + " out of bounds"); }
// What a CPU without such an instruction takes a call for: exponents moved by a product, which knows subnormals.
static inline float wide(uint16_t x) {
  if (bf16) return bits_float((uint32_t)x << 16);
  const float f = bits_float((x & 0x7fffu) << 13) * 0x1p112f;
  return bits_float(float_bits(f) | (uint32_t)(x & 0x8000) << 16 | (f >= 65536 ? 0x7f800000u : 0));
}
float half_to_float(uint16_t x) { return wide(x); }
uint16_t float_to_half(float x) {
  // to nearest, ties to even
  if (bf16) { const uint32_t u = float_bits(x); return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16; }
  _Float16 h = (_Float16)x; uint16_t u; std::memcpy(&u, &h, 2); return u;
}
void generic_write(uint32_t at, const void* x, int bytes) {
  check(at, bytes);
  std::memcpy(shared + at, x, bytes);
  std::memset(unfenced + at, 1, bytes);
  fibers[current].written.push_back({at, bytes});
}
static inline float async_half(uint32_t at) {
  check(at, 2);
  if (unfenced[at])
    fail("the asynchronous proxy reads shared memory that was written without fence.proxy.async, at " +
         std::to_string(at));
  uint16_t x; std::memcpy(&x, shared + at, 2); return wide(x);
}
void go_on(Fiber& f) {
  if (_setjmp(scheduler)) return;
  if (f.begun) _longjmp(f.at_yield, 1);
  f.begun = true;
  setcontext(&f.context);
}
// MmaColumns: rows of 16 bytes, not swizzled, bfloat16s
void add_columns(const Product& p) {
  auto part = [](uint32_t at) {
    async_half(at);  // checks the place
    uint32_t x = 0; std::memcpy((uint8_t*)&x + 2, shared + at, 2);
    float f; std::memcpy(&f, &x, 4); return f;
  };
  for (int r = 0; r < 16; r++) for (int n = 0; n < 64; n++) {
    float sum = 0;
    for (int k = 0; k < 16; k++)
      sum += part(p.a_desc + r % 8 * 16 + k % 8 * 2) * part(p.b_desc + n * 16 + k % 8 * 2);
    p.d[r % 8 * 4 + n % 8 / 2][n / 8 * 4 + r / 8 * 2 + n % 2] += sum;
  }
  progress = true;
}
void multiply(int warp_index, const Product& p) {
  if (!p.b_rows) return add_columns(p);
  const bool b64 = p.b_rows == 64;
  float a[16][16]; std::vector<float> b(16 * p.n);
  for (int r = 0; r < 16; r++) for (int k = 0; k < 16; k++) {
    if (p.a_in_regs) a[r][k] = wide(p.a[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2] >> (k % 2 * 16));
    else a[r][k] = async_half(operand(p.a_desc, warp_index % 4 * 16 + r, k, p.ta, false));
  }
  for (int k = 0; k < 16; k++)
    for (int n = 0; n < p.n; n++) b[k * p.n + n] = async_half(operand(p.b_desc, n, k, p.tb, b64));
  for (int r = 0; r < 16; r++) for (int n = 0; n < p.n; n++) {
    float sum = 0; for (int k = 0; k < 16; k++) sum += a[r][k] * b[k * p.n + n];
    float& d = p.d[r % 8 * 4 + n % 8 / 2][n / 8 * 4 + r / 8 * 2 + n % 2];
    d = (p.acc ? d : 0.f) + sum;
  }
  progress = true;
}
void finish_products(int warp_index, int first_kept_group) {
  auto& q = warps[warp_index].products;
  while (!q.empty() && q.front().group < first_kept_group) { multiply(warp_index, q.front()); q.pop_front(); }
}
void add_sum(Fiber& f) {
  const Sum s = f.sums.front(); f.sums.pop_front();
  for (int i = 0; i < s.bytes / 4; i++) {
    if (unfenced[s.src + 4 * i])
      fail("a bulk reduction reads shared memory that was written without fence.proxy.async");
    float x; std::memcpy(&x, shared + s.src + 4 * i, 4); s.dst[i] = s.store ? x : s.dst[i] + x;
  }
  progress = true;
}
void settle(Barrier& b) {
  progress = true;
  if (b.pending == 0 && b.bytes == 0) { b.phase++; b.pending = b.expected; }
  if (b.pending < 0) fail("more arrivals than an mbarrier expects");
}
void deliver(size_t i) {
  Load l = loads[i]; loads.erase(loads.begin() + i);
  l.run(); Barrier& b = barriers.at(l.bar); b.bytes -= l.bytes; settle(b);
}
void issue_load(std::function<void()> run, uint32_t bar, int bytes) {
  loads.push_back({std::move(run), bar, bytes});
  if (timing == EARLY) deliver(loads.size() - 1);
}

void start() {
  for (;;) {   // block after block: a context and a stack that is there cost nothing
    body();
    Fiber& f = fibers[current];
    while (!f.sums.empty()) add_sum(f);
    f.done = true;
    progress = true;
    yield();
  }
}

std::string in_words(const Place& at) {
  std::string text = at.what;
  if (at.number >= 0) text += std::to_string(at.number);
  return at.parity < 0 ? text : text + " parity " + std::to_string(at.parity);
}
void run_block(int threads) {
  warps.assign(threads / 32, Warp());
  barriers.clear();
  named.clear();
  loads.clear();
  std::memset(shared, 0xff, SHARED_BYTES); std::memset(unfenced, 0, SHARED_BYTES);   // fp16 and fp32 NaN
  const bool first = fibers.empty();
  fibers.resize(threads);
  for (Fiber& f : fibers) {
    f.done = false; f.at = {}; f.written.clear();
    if (!first) continue;
    f.stack.reset(new char[131072]); getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get(); f.context.uc_stack.ss_size = 131072; f.context.uc_link = nullptr;
    makecontext(&f.context, start, 0);
  }
  for (Warp& w : warps) w.pace = timing == RANDOM ? 0.05 + 0.95 * roll() * roll() : 1;
  for (int idle = 0;;) {
    progress = false; bool alive = false;
    for (int w = 0; w < (int)warps.size(); w++) {
      if (fibers[32 * w].done && fibers[32 * w + 31].done) continue;
      alive = true;
      if (timing == RANDOM && roll() > warps[w].pace) {   // this warp rests, its tensor core may not
        auto& q = warps[w].products;
        current = 32 * w;
        if (roll() < 0.2 && !q.empty()) finish_products(w, q.front().group + 1);
        if (!failure.empty()) return;
        continue;
      }
      for (int i = 32 * w; i < 32 * w + 32; i++) {
        if (fibers[i].done) continue;
        current = i;   // a failing fiber comes back to the line below as well, through setcontext
        go_on(fibers[i]);
        if (!failure.empty()) return;
        if (timing == RANDOM && !fibers[i].sums.empty() && roll() < 0.1) add_sum(fibers[i]);
      }
    }
    if (timing == RANDOM && !loads.empty() && roll() < 0.2) deliver(dice() % loads.size());
    if (!alive) break;
    if (progress) { idle = 0; continue; }
    if (!loads.empty()) { deliver(timing == RANDOM ? dice() % loads.size() : 0); continue; }
    if (++idle > (timing == RANDOM ? 2000 : 3)) {
      std::string where;
      for (int i = 0; i < threads; i += 32)
        where += " warp " + std::to_string(i / 32) + (fibers[i].done ? " done" : " at " + in_words(fibers[i].at)) + ";";
      failure = "block " + std::to_string(block) + ": deadlock:" + where; return;
    }
  }
  if (!loads.empty())
    failure = "block " + std::to_string(block) + ": ends while loads into its shared memory are on their way";
}
// The first failure of a launch, or an empty string.
const char* launch(int blocks, int threads, int how, int seed, std::function<void()> kernel) {
  shared = static_cast<uint8_t*>(aligned_alloc(1024, SHARED_BYTES));
  unfenced = static_cast<uint8_t*>(aligned_alloc(1024, SHARED_BYTES));
  grid = blocks; timing = how; dice.seed(seed); body = std::move(kernel); failure.clear();
  for (block = 0; block < blocks && failure.empty(); block++) run_block(threads);
  free(shared); free(unfenced); fibers.clear();
  return failure.c_str();
}
#endif
}  // namespace cpu

#define threadIdx cpu::thread_index()
#define blockIdx cpu::block_index()
#define gridDim cpu::grid_size()
#define SHARED_MEMORY(name) uint8_t* const name = cpu::shared + cpu::BASE
inline uint32_t smem_u32(const void* p) { return (uint32_t)(static_cast<const uint8_t*>(p) - cpu::shared); }
inline void __trap() { cpu::fail("trap"); }

// ------------------------------------------------------------------------------------------ wgmma
inline uint32_t desc_low(uint32_t addr, uint32_t panel_bytes) { return (addr >> 4) | ((panel_bytes >> 4) << 16); }
namespace cpu {
inline void issue(Product& p, float* d, const uint32_t* a) {
  p.d[0] = d; p.a[0] = a;
  together("wgmma", p, [](Product** all) {
    Product one = *all[0]; one.group = warp().group;
    for (int i = 0; i < 32; i++) {
      one.d[i] = all[i]->d[0]; one.a[i] = all[i]->a[0];
      if (all[i]->a_desc != one.a_desc || all[i]->b_desc != one.b_desc || all[i]->acc != one.acc || all[i]->n != one.n)
        fail("lanes disagree about a wgmma");
    }
    warp().products.push_back(one);
    if (timing == EARLY) finish_products(current / 32, one.group + 1);
  });
}
}  // namespace cpu
template <int N, int TA, int TB, int B_ROWS = 128> struct MmaSS {
  static void mma(float (&d)[N / 2], uint32_t a, uint32_t b, int acc) {
    cpu::Product p{N, TA, TB, B_ROWS, 0, a, b, false, acc != 0, {}, {}};
    cpu::issue(p, d, nullptr);
  }
};
template <int N, int TB, int B_ROWS = 128> struct MmaRS {
  static void mma(float (&d)[N / 2], const uint32_t* a, uint32_t b, int acc) {
    cpu::Product p{N, 0, TB, B_ROWS, 0, 0, b, true, acc != 0, {}, {}};
    cpu::issue(p, d, a);
  }
};
struct MmaColumns {
  static void mma(float (&d)[32], uint32_t a, uint32_t b) {
    cpu::Product p{64, 0, 0, 0, 0, a, b, false, true, {}, {}};
    cpu::issue(p, d, nullptr);
  }
};
inline void wgmma_fence() {}
inline void wgmma_commit() {
  int none = 0;
  cpu::together("wgmma.commit_group", none, [](int**) { cpu::warp().group++; });
}
template <int PENDING> void wgmma_wait() {
  int none = 0;
  cpu::together("wgmma.wait_group", none,
                [](int**) { cpu::finish_products(cpu::current / 32, cpu::warp().group - PENDING); });
}
template <class T, int n> void touch(T (&r)[n]) { asm volatile("" ::"r"(r) : "memory"); }

// ------------------------------------------------------------------------- mbarriers, TMA, barriers
inline void mbar_init(uint32_t bar, int arrivals) {
  cpu::check(bar, 8);
  if (bar % 8) cpu::fail("mbarrier not aligned");
  cpu::barriers[bar] = {arrivals, arrivals, 0, 0};
}
inline void mbar_init_done() {}
inline void mbar_wait(uint32_t bar, uint32_t parity) {
  if (!cpu::barriers.count(bar)) cpu::fail("wait on what is no mbarrier");
  cpu::fibers[cpu::current].at = {"mbarrier ", bar, (int)parity};
  for (const auto& b = cpu::barriers[bar]; (b.phase & 1) == (int)parity;) cpu::yield();
}
inline void mbar_arrive_if(uint32_t bar, int on) {
  if (on) {
    auto& b = cpu::barriers.at(bar);
    b.pending--;
    cpu::settle(b);
  }
}
inline int mbar_test(uint32_t bar, uint32_t parity) { return (cpu::barriers.at(bar).phase & 1) != (int)parity; }
inline void mbar_expect_if(uint32_t bar, int bytes, int on) {
  if (on) {
    auto& b = cpu::barriers.at(bar);
    b.bytes += bytes;
    b.pending--;
    cpu::settle(b);
  }
}
inline void tma_load_4d_if(uint32_t dst, const TensorMap* map, int col, int row, int head, int batch, uint32_t bar,
                           int on) {
  if (!on) return;
  const TensorMap m = *map;
  cpu::check(dst, m.box_rows * 128);
  if (dst % 1024) cpu::fail("a swizzled box must start at a multiple of 1024");
  cpu::issue_load([=] {
    for (int r = 0; r < m.box_rows; r++) for (int c = 0; c < 64; c++) {
      const bool in = row + r >= 0 && row + r < m.rows && col + c < m.columns;
      const uint16_t x = in ? m.base[batch * m.batch_step + head * m.head_step + (row + r) * m.row_step + col + c] : 0;
      std::memcpy(cpu::shared + cpu::swizzle(dst + r * 128 + c * 2, false), &x, 2);
    }
  }, bar, m.box_rows * 128);
}
inline void tma_load_if(uint32_t dst, const TensorMap* map, int col, int row, int head, uint32_t bar, int on) {
  tma_load_4d_if(dst, map, col, row, head, 0, bar, on);
}
inline void bulk_load_if(uint32_t dst, const void* src, int bytes, uint32_t bar, int on) {
  if (!on) return;
  cpu::check(dst, bytes);
  if (dst % 16 || bytes % 16 || (uintptr_t)src % 16) cpu::fail("bulk copy not aligned to 16 bytes");
  cpu::issue_load([=] { std::memcpy(cpu::shared + dst, src, bytes); }, bar, bytes);
}
inline void bulk_add_if(float* dst, uint32_t src, int bytes, int on, bool store = false) {
  if (!on) return;
  cpu::check(src, bytes);
  if (src % 16 || bytes % 16 || (uintptr_t)dst % 16) cpu::fail("bulk reduction not aligned to 16 bytes");
  auto& f = cpu::fibers[cpu::current]; f.sums.push_back({dst, src, bytes, store});
  if (cpu::timing == cpu::EARLY) cpu::add_sum(f);
}
inline void bulk_store_if(float* dst, uint32_t src, int bytes, int on) { bulk_add_if(dst, src, bytes, on, true); }
inline void red_add_float4(float* dst, float a, float b, float c, float d) {
  if ((uintptr_t)dst % 16) cpu::fail("vector reduction not aligned to 16 bytes");
  dst[0] += a; dst[1] += b; dst[2] += c; dst[3] += d;
}
inline uint32_t counter_take_if(uint32_t* counter, int on) {
  cpu::progress |= on != 0;
  return on ? (*counter)++ : 0;
}
inline uint32_t counter_take_fenced_if(uint32_t* counter, int on) { return counter_take_if(counter, on); }
inline float4 load_float4(const float* src) { float4 x; std::memcpy(&x, src, 16); return x; }
inline void counter_add(uint32_t* counter, int count) { *counter += count; cpu::progress = true; }
inline void counter_add_if(uint32_t* counter, int count, int on) { if (on) counter_add(counter, count); }
inline void counter_add_fenced_if(uint32_t* counter, int count, int on) { counter_add_if(counter, count, on); }
// of warps of the same block: blocks run one after another
inline void counter_wait(const uint32_t* counter, int count) {
  cpu::fibers[cpu::current].at = {"a counter that shall be ", count};
  while (*counter < (uint32_t)count) cpu::yield();
}
inline void count_up_if(uint32_t addr, uint32_t count, int on) {
  if (!on) return;
  cpu::check(addr, 4);
  std::memcpy(cpu::shared + addr, &count, 4); cpu::progress = true;
}
inline void count_wait(uint32_t addr, uint32_t count) {
  cpu::check(addr, 4);
  cpu::fibers[cpu::current].at = {"a count in shared memory that shall be ", count};
  for (uint32_t x = 0; std::memcpy(&x, cpu::shared + addr, 4), x < count;) cpu::yield();
}
inline void proxy_fence_global() {}
inline void bulk_commit() {}
inline void bulk_wait_read() { auto& f = cpu::fibers[cpu::current]; while (!f.sums.empty()) cpu::add_sum(f); }
inline void bulk_wait() { bulk_wait_read(); }
inline void bar_sync(int id, int threads) {
  auto& b = cpu::named[id]; cpu::fibers[cpu::current].at = {"barrier ", id}; cpu::progress = true;
  if (++b.arrived == threads) { b.arrived = 0; b.generation++; return; }
  for (const uint64_t g = b.generation; b.generation == g;) cpu::yield();
}
inline void __syncthreads() { bar_sync(0, (int)cpu::fibers.size()); }
inline void __syncwarp() { int none = 0; cpu::together("__syncwarp", none, [](int**) {}); }
inline void proxy_fence() {
  auto& f = cpu::fibers[cpu::current];
  for (auto [at, bytes] : f.written) std::memset(cpu::unfenced + at, 0, bytes);
  f.written.clear();
}
template <int N> void regs_down() {}
template <int N> void regs_up() {}

// ------------------------------------------------------------------ shared memory, 8 x 8 matrices
namespace cpu {
struct Matrices { uint32_t addr; uint32_t x[4]; };
inline void move_matrices(const char* what, Matrices& m, int store, int transposed) {
  together(what, m, [&](Matrices** all) {
    for (int l = 0; l < 32; l++) for (int i = 0; i < 4; i++) for (int half = 0; half < 2; half++) {
      const int r = transposed ? l % 4 * 2 + half : l / 4, c = transposed ? l / 4 : l % 4 * 2 + half;
      const uint32_t at = check(all[8 * i + r]->addr, 16) + 2 * c;
      if (all[8 * i + r]->addr % 16) fail("matrix row not aligned to 16 bytes");
      const uint16_t mine = (uint16_t)(all[l]->x[i] >> (16 * half));
      if (store) { std::memcpy(shared + at, &mine, 2); continue; }
      uint16_t x; std::memcpy(&x, shared + at, 2);
      all[l]->x[i] = half ? (all[l]->x[i] & 0xffffu) | (uint32_t)x << 16 : (all[l]->x[i] & 0xffff0000u) | x;
    }
  });
  if (store) { std::memset(unfenced + m.addr, 1, 16); fibers[current].written.push_back({m.addr, 16}); }
}
}  // namespace cpu
inline void store_matrices(uint32_t addr, const uint32_t* x) {
  cpu::Matrices m{addr, {x[0], x[1], x[2], x[3]}};
  cpu::move_matrices("stmatrix", m, 1, 0);
}
inline void load_matrices(uint32_t* x, uint32_t addr) {
  cpu::Matrices m{addr, {}};
  cpu::move_matrices("ldmatrix", m, 0, 0);
  std::memcpy(x, m.x, 16);
}
inline void load_matrices_transposed(uint32_t* x, uint32_t addr) {
  cpu::Matrices m{addr, {}};
  cpu::move_matrices("ldmatrix.trans", m, 0, 1);
  std::memcpy(x, m.x, 16);
}
inline uint32_t transpose_matrix(uint32_t x) {
  struct Mine { uint32_t x, got; } m{x, 0};
  cpu::together("movmatrix", m, [](Mine** all) {
    for (int l = 0; l < 32; l++) for (int half = 0; half < 2; half++) {
      const uint32_t from = all[(l % 4 * 2 + half) * 4 + l / 8]->x;   // row 2 (l % 4) + half, column l / 4
      all[l]->got |= (from >> (l / 4 % 2 * 16) & 0xffff) << (16 * half);
    }
  });
  return m.got;
}
inline float lds_float(uint32_t addr) {
  float x; std::memcpy(&x, cpu::shared + cpu::check(addr, 4), 4); return x;
}
inline float2 lds_float2(uint32_t addr) {
  float2 v;
  cpu::check(addr, 8);
  std::memcpy(&v, cpu::shared + addr, 8);
  return v;
}
inline float4 lds_float4(uint32_t addr) {
  float4 v;
  if (addr % 16) cpu::fail("load not aligned to 16 bytes");
  cpu::check(addr, 16);
  std::memcpy(&v, cpu::shared + addr, 16);
  return v;
}
inline void sts_float4(uint32_t addr, float a, float b, float c, float d) {
  const float x[4] = {a, b, c, d};
  cpu::generic_write(addr, x, 16);
}
inline void sts_word_if(uint32_t addr, uint32_t x, int on) { if (on) cpu::generic_write(addr, &x, 4); }
inline uint32_t lds_word(uint32_t addr) {
  uint32_t x;
  cpu::check(addr, 4);
  std::memcpy(&x, cpu::shared + addr, 4);
  return x;
}
inline void sts_words(uint32_t addr, const uint32_t* x) {
  if (addr % 16) cpu::fail("store not aligned to 16 bytes");
  cpu::generic_write(addr, x, 16);
}
inline void lds_words(uint32_t* x, uint32_t addr) {
  if (addr % 16) cpu::fail("load not aligned to 16 bytes");
  cpu::check(addr, 16);
  std::memcpy(x, cpu::shared + addr, 16);
}

// --------------------------------------------------------------------------------- small arithmetic
inline float exp2_approx(float x) { return std::exp2(x); }
inline uint32_t pack_half2(float lo, float hi) {
  return cpu::float_to_half(lo) | (uint32_t)cpu::float_to_half(hi) << 16;
}
inline float2 unpack_half2(uint32_t x) {
  return {cpu::half_to_float((uint16_t)x), cpu::half_to_float((uint16_t)(x >> 16))};
}
inline int lane_now() { return cpu::lane(); }
inline float infinity() { return INFINITY; }
template <class T> T __shfl_sync(unsigned, T x, int from) {
  struct Mine { T x; int from; T got; } m{x, from, x};
  cpu::together("shfl", m, [](Mine** all) { for (int i = 0; i < 32; i++) all[i]->got = all[all[i]->from & 31]->x; });
  return m.got;
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int by) { return __shfl_sync(mask, x, cpu::lane() ^ by); }
inline void transpose_quad(uint32_t (&x)[4], int lane) {
  uint32_t y[4];
  for (int step = 0; step < 4; step++) {   // lane i of a quad gives x[j] to lane j
    const int partner = (lane & 3) ^ step;
    y[partner] = __shfl_xor_sync(~0u, x[partner], step);
  }
  std::memcpy(x, y, 16);
}
