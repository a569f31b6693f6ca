//! Nothing is allocated during a step: a counting allocator says so.

mod golden;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use golden::Golden;
use pocketune::backend::{Aim, Law, Noise, Rule, Sides, Still};
use pocketune::graph::{Derivatives, Turns};
use pocketune::plan::{Mode, Policy, PolicyName};
use pocketune_kernels::Isa;
use pocketune_kernels::update::{AdaLomo, AdamW, Apollo, Galore, Mlorc, Sgd};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    steps_with_gradients();
    steps_along_directions();
    steps_of_a_model_itself();
    steps_of_blocks_in_turns();
    println!("nothing is allocated during a step ... ok");
}

fn steps_with_gradients() {
    let adamw = AdamW { lr: 1e-3, weight_decay: 0.0, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 1 };
    for (name, rule) in [
        ("llama", Rule::Sgd(Sgd { lr: 1e-3, weight_decay: 0.0 })),
        ("gemma3_text", Rule::AdamW(adamw)),
        ("qwen2.gguf", Rule::AdamW8bit(adamw)),
        ("opt", Rule::AdamW(adamw)),
        ("roberta", Rule::AdamW(adamw)),
        ("qwen2_dora", Rule::AdamW(adamw)),
        ("gemma3_text_ends", Rule::AdamW(adamw)),
        ("roberta_classes", Rule::AdamW(adamw)),
    ] {
        for mode in [Mode::TrainAndUpdate, Mode::Accumulate, Mode::Evaluate] {
            for policy in [PolicyName::None, PolicyName::Block, PolicyName::Selective] {
                let mut golden = Golden::open(name);
                golden.states = rule.states();
                if matches!(name, "llama" | "roberta") {
                    golden.derivatives = Derivatives { approx_act: true, ms_norm: true, ce_skip: true };
                }
                let mut case = golden.case(true, mode, policy, 2);
                let batch = case.batch();
                let mut step = || {
                    let before = ALLOCATIONS.load(Ordering::Relaxed);
                    case.cpu.run(&case.program, batch.batch(), 0, Some(rule)).unwrap();
                    ALLOCATIONS.load(Ordering::Relaxed) - before
                };
                step();
                assert_eq!((step(), step()), (0, 0), "{name} {mode:?} {policy:?}");
            }
        }
    }
}

fn steps_of_a_model_itself() {
    let adamw = AdamW { lr: 1e-3, weight_decay: 0.0, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 1 };
    for rule in [
        Rule::Sgd(Sgd { lr: 1e-3, weight_decay: 0.0 }),
        Rule::AdamW8bit(adamw),
        Rule::AdaLomo(AdaLomo { lr: 1e-3, weight_decay: 0.0, step: 1 }),
        Rule::Apollo(Apollo { adamw, rank: 4, scale: 16.0, tensor: false, seed: 3 }),
        Rule::Mlorc(Mlorc { adamw, seed: 3 }),
        Rule::Galore(Galore { adamw, rank: 4, scale: 0.25, seed: 3 }),
    ] {
        for name in ["llama.gguf", "qwen2.gguf"] {
            let mut golden = Golden::open(name);
            (golden.states, golden.whole) = (rule.states(), true);
            let mut case = golden.case(true, Mode::TrainAndUpdate, PolicyName::Block, 2);
            let batch = case.batch();
            let mut step = || {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                case.cpu.run(&case.program, batch.batch(), 0, Some(rule)).unwrap();
                ALLOCATIONS.load(Ordering::Relaxed) - before
            };
            step();
            assert_eq!((step(), step()), (0, 0), "{name} {rule:?}");
        }
    }
}

fn steps_of_blocks_in_turns() {
    let adamw = AdamW { lr: 1e-3, weight_decay: 0.0, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 1 };
    for policy in
        [Policy::named(PolicyName::Block), Policy { page_optimizer: true, ..Policy::named(PolicyName::Block) }]
    {
        let mut golden = Golden::open("gemma3_text.gguf");
        (golden.whole, golden.turns) = (true, Some(Turns { blocks: 2, ends: true }));
        let mut case = golden.case_on(Isa::detect().unwrap(), true, Mode::TrainAndUpdate, policy, 2);
        let batch = case.batch();
        let mut step = |first: usize| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            case.cpu.take_turn(|block| block / 2 == first, 1).unwrap();
            case.cpu.run(&case.program, batch.batch(), 0, Some(Rule::AdamW(adamw))).unwrap();
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        step(0);
        assert_eq!((step(1), step(2)), (0, 0), "{policy:?}");
    }
}

fn steps_along_directions() {
    for (name, law, still, whole) in [
        ("qwen2.gguf", Law::Normal, Still::Large(0.75), false),
        ("qwen2.gguf", Law::Signs, Still::Blocks(0.75), false),
        ("qwen2.gguf", Law::LowRank(2), Still::Nothing, false),
        ("qwen2.gguf", Law::Normal, Still::Large(0.75), true),
        ("roberta_classes", Law::Normal, Still::Nothing, false),
    ] {
        let mut golden = Golden::open(name);
        (golden.groups, golden.whole) = (3, whole);
        let mut case = golden.case(true, Mode::Perturb, PolicyName::Block, 2);
        let batch = case.batch();
        let mut step = || {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            case.cpu.aim(Aim { seed: 1, slow: 1, law, sides: Sides::One(2), still, eps: 1e-2 }, &case.graph);
            case.cpu.clear_sums();
            case.cpu.run(&case.program, batch.batch(), 0, None).unwrap();
            case.cpu.step_along(&[0.1, 0.2], 1.0, Noise::default()).unwrap();
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        step();
        assert_eq!((step(), step()), (0, 0), "{law:?} {still:?}");
    }
}
