//! The conditions under which `train` goes on: what was typed becomes a policy, this machine's readings become advice, and a change of pace
//! becomes a line with its reason.

use std::time::Duration;

use pocketune::conditions::{Conditions, Linux, Policy, Source, Window};
use pocketune::train::{Advice, Pace};

use crate::args::ConditionArgs;
use crate::{Failure, note};

/// A policy that looks at the machine now and then.
pub struct Watch {
    policy: Policy,
    conditions: Conditions,
    source: Linux,
    every: Duration,
    looked: Option<Duration>,
    advice: Advice,
}

impl Watch {
    /// What was asked for.
    pub fn new(args: &ConditionArgs) -> Result<Self, Failure> {
        if let Some(percent) = args.min_battery.filter(|&percent| percent > 100) {
            return Err(Failure(format!("--min-battery {percent}: a percentage of at most 100")));
        }
        if let Some(celsius) = args.max_temp.filter(|celsius| !(1.0..=150.0).contains(celsius)) {
            return Err(Failure(format!("--max-temp {celsius}: between 1 and 150 degrees Celsius")));
        }
        if args.check_every == 0 {
            return Err(Failure("--check-every 0: at least 1 second".into()));
        }
        let between = args.between.as_deref().map(Window::parse).transpose().map_err(Failure::new)?;
        let policy = Policy {
            only_on_power: args.only_on_power,
            min_battery: args.min_battery,
            max_temp: args.max_temp,
            between,
            // A command line has nobody who is disturbed by it but the one who typed it.
            yield_to_user: false,
            budget: None,
        };
        Ok(Self {
            policy,
            conditions: Conditions::new(policy),
            source: Linux::new(),
            every: Duration::from_secs(args.check_every),
            looked: None,
            advice: Advice::GO,
        })
    }

    /// The run that is to come has this budget.
    pub fn planned(&mut self, budget: Option<usize>) {
        self.conditions = Conditions::new(Policy { budget, ..self.policy });
    }

    /// What the machine advises, looked at again when it is time; a line when the pace changes.
    pub fn advice(&mut self, now: Duration) -> Advice {
        if self.looked.is_some_and(|looked| now < looked + self.every) {
            return self.advice;
        }
        self.looked = Some(now);
        let (advice, reason) = self.conditions.advise(&self.source.read());
        if advice.pace != self.advice.pace {
            let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
            note(
                match advice.pace {
                    Pace::Run => "Pace: on at full speed".to_owned(),
                    Pace::Slow => format!("Pace: slowed down{reason}"),
                    Pace::Pause => format!("Pace: paused{reason}"),
                }
                .as_str(),
            );
        }
        self.advice = advice;
        advice
    }
}
