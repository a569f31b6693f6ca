//! The picture says what the plan says: heights, names and the budget are read back from the SVG itself.

use pocketune_kernels::matmul::Precision;
use pocketune_kernels::{BlockType, Isa};

use super::columns::alive;
use super::*;
use crate::families::{Config, shape};
use crate::graph::LoraSpec;
use crate::plan::{Machine, Mode, Rates, Setting, States, Surroundings};

/// The fastest and the smallest plan of a small model, with gradients applied at once and summed.
fn plans() -> Vec<Plan> {
    let config = Config {
        layers: 3,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 192,
        vocab: 3000,
        windowed: vec![false; 3],
        ..shape("qwen2.5-0.5b").unwrap()
    };
    let lora = LoraSpec::default();
    let graph = config.graph(Some(&lora)).unwrap();
    let stored = vec![BlockType::Q4_0.into(); graph.weights.len()];
    let setting = |mode| Setting {
        graph: &graph,
        stored: &stored,
        length: 128,
        batch: 2,
        groups: 1,
        looks: 1,
        log: 0,
        machine: Machine { threads: 2, isa: Isa::Scalar, precision: Precision::F32 },
        mode,
        validates: true,
        states: States::F32,
        named: None,
        may_spill: true,
        around: Surroundings { process: 1 << 20, preparation: 0 },
        rates: Rates::TYPICAL,
        kv_width: 0,
    };
    let of = |mode| [setting(mode).fastest(usize::MAX).unwrap(), setting(mode).smallest()];
    [Mode::TrainAndUpdate, Mode::Accumulate].into_iter().flat_map(of).collect()
}

/// The values of an attribute in all shapes of a class.
fn attributes<'a>(svg: &'a str, class: &str, name: &str) -> Vec<&'a str> {
    let (class, name) = (format!("class=\"{class}\""), format!(" {name}=\""));
    let lines = svg.lines().filter(|line| line.contains(&class));
    lines.map(|line| line.split(&name).nth(1).unwrap().split('"').next().unwrap()).collect()
}

/// The highest point of the bands.
fn top(svg: &str) -> f64 {
    let points = attributes(svg, "band", "d").into_iter().flat_map(|path| path.trim_end_matches('Z').split(['M', 'L']));
    let heights = points.filter_map(|point| point.split(' ').nth(1)).map(|y| y.parse::<f64>().unwrap());
    heights.fold(f64::INFINITY, f64::min)
}

#[test]
fn tags_are_balanced_and_nothing_is_loaded_from_elsewhere() {
    for plan in plans() {
        let samples = [Sample { fraction: 0.5, anon: 1 << 20, rss: 2 << 20 }];
        let svg = picture(&plan, Some(plan.peak()), Some(&samples));
        let opened = svg.matches('<').count() - svg.matches("</").count();
        assert_eq!(opened, svg.matches("/>").count() + svg.matches("</").count());
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!["<script", "href", "url(", "@import", "NaN", "inf"].iter().any(|word| svg.contains(word)));
        assert!(svg.len() < 200_000, "{} bytes", svg.len());
    }
}

#[test]
fn the_budget_is_a_line_only_where_there_is_one() {
    let plan = &plans()[0];
    assert!(!picture(plan, None, None).contains("budget"));
    let near = picture(plan, Some(plan.peak() + (1 << 20)), None);
    assert_eq!(attributes(&near, "budget", "y1").len(), 1);
    let far = picture(plan, Some(plan.peak() * 100), None);
    assert!(far.contains("far above"));
    assert_eq!(top(&far), top(&picture(plan, None, None)), "a far budget must not flatten the picture");
}

#[test]
fn the_stack_reaches_the_planned_peak_and_no_higher() {
    for plan in plans() {
        let step = Step::new(&plan);
        assert_eq!(step.peak.total(&plan), plan.peak());
        let drawn = step.columns.iter().map(|held| held.total(&plan)).max();
        assert_eq!(drawn, Some(plan.peak()), "downsampling lost the peak");
        // The budget at the peak lies on top of the stack.
        let svg = picture(&plan, Some(plan.peak()), None);
        let budget: f64 = attributes(&svg, "budget", "y1")[0].parse().unwrap();
        assert!((budget - top(&svg)).abs() < 0.11, "{budget} {}", top(&svg));
        assert!(svg.contains(&format!("peak {} MiB", mib(plan.peak()))));
    }
}

#[test]
fn what_is_alive_is_never_more_than_the_arena() {
    for plan in plans() {
        let step = Step::new(&plan);
        for at in 0..plan.program.instrs.len() {
            let sum: usize = alive(&plan, at).iter().map(|group| group.bytes).sum();
            assert_eq!(sum, 4 * plan.program.live(at));
            assert!(sum <= step.fullest.used());
        }
        assert!(step.fullest.used() <= plan.memory.program);
    }
}

#[test]
fn the_largest_buffers_alive_at_the_peak_are_named() {
    for plan in plans() {
        let (step, svg) = (Step::new(&plan), picture(&plan, None, None));
        for held in [&step.peak, &step.fullest] {
            for group in alive(&plan, held.at).iter().take(3) {
                let line = svg.lines().any(|line| line.contains(&format!(">{}", group.name)));
                assert!(line, "{} is missing", group.name);
            }
        }
    }
}

#[test]
fn the_step_lasts_as_long_as_the_plan_says_and_its_phases_cover_it() {
    for plan in plans() {
        let step = Step::new(&plan);
        assert!((step.seconds / plan.seconds() - 1.0).abs() < 1e-9);
        let names: Vec<&str> = step.phases.iter().map(|phase| phase.name).collect();
        let update = if plan.program.mode == Mode::Accumulate { &["update"][..] } else { &[] };
        assert_eq!(names, [&["forward", "loss", "backward"], update].concat());
        assert_eq!(step.phases[0].span[0], 0.0);
        assert!(step.phases.windows(2).all(|pair| pair[0].span[1] == pair[1].span[0]));
    }
}
