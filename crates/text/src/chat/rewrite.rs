//! A template, written again so that whatever it makes is counted. The engine bounds steps, not sizes: a string that is joined to
//! itself forty times needs forty steps and a terabyte. So the template is parsed, and written out with every operation that makes or
//! walks over a value of any size turned into, or put into, a call of a function of [`super::work`], and with its own text emitted by
//! one. It refuses tags that load other templates, since there are none, and names that begin with two underscores, since those are its own.

use std::fmt::Write;

use minijinja::Value;
use minijinja::machinery::{ast, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;

use super::work;

type Result<T> = std::result::Result<T, minijinja::Error>;

/// What a template becomes.
pub struct Rewritten {
    /// The template in its counted form: tags and expressions only.
    pub source: String,
    /// The texts between its tags, emitted by their number.
    pub texts: Vec<String>,
}

/// Writes a template again. Whitespace control is over then: the parser has applied it.
pub fn rewrite(source: &str, syntax: SyntaxConfig) -> Result<Rewritten> {
    let parsed = parse(source, super::NAME, syntax)?;
    let mut writer = Writer { out: String::new(), texts: Vec::new() };
    writer.statement(&parsed)?;
    Ok(Rewritten { source: writer.out, texts: writer.texts })
}

struct Writer {
    out: String,
    texts: Vec<String>,
}

impl Writer {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn statements(&mut self, list: &[ast::Stmt]) -> Result<()> {
        list.iter().try_for_each(|statement| self.statement(statement))
    }

    /// `{% before … %}` with what `inside` writes.
    fn tag(&mut self, before: &str, inside: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.push("{% ");
        self.push(before);
        self.push(" ");
        inside(self)?;
        self.push(" %}");
        Ok(())
    }

    fn end(&mut self, name: &str) -> Result<()> {
        self.tag(name, |_| Ok(()))
    }

    fn statement(&mut self, statement: &ast::Stmt) -> Result<()> {
        match statement {
            ast::Stmt::Template(template) => self.statements(&template.children),
            ast::Stmt::EmitRaw(text) => {
                let _ = write!(self.out, "{{{{ {}({}) }}}}", work::TEXT, self.texts.len());
                self.texts.push(text.raw.to_owned());
                Ok(())
            }
            ast::Stmt::EmitExpr(emit) => {
                self.push("{{ ");
                self.expression(&emit.expr)?;
                self.push(" }}");
                Ok(())
            }
            ast::Stmt::ForLoop(each) => self.for_loop(each),
            ast::Stmt::IfCond(cond) => {
                self.tag("if", |w| w.expression(&cond.expr))?;
                self.statements(&cond.true_body)?;
                if !cond.false_body.is_empty() {
                    self.end("else")?;
                    self.statements(&cond.false_body)?;
                }
                self.end("endif")
            }
            ast::Stmt::WithBlock(with) => {
                self.tag("with", |w| {
                    w.separated(&with.assignments, |w, (target, value)| {
                        w.target(target)?;
                        w.push(" = ");
                        w.expression(value)
                    })
                })?;
                self.statements(&with.body)?;
                self.end("endwith")
            }
            ast::Stmt::Set(set) => self.tag("set", |w| {
                w.target(&set.target)?;
                w.push(" = ");
                match &set.target {
                    ast::Expr::GetAttr(_) => w.call(work::STORED, &[&set.expr]),
                    _ => w.expression(&set.expr),
                }
            }),
            ast::Stmt::SetBlock(set) => {
                self.tag("set", |w| {
                    w.target(&set.target)?;
                    set.filter.iter().try_for_each(|filter| {
                        w.push(" | ");
                        w.filters(filter)
                    })
                })?;
                self.statements(&set.body)?;
                self.end("endset")
            }
            ast::Stmt::FilterBlock(block) => {
                self.tag("filter", |w| w.filters(&block.filter))?;
                self.statements(&block.body)?;
                self.end("endfilter")
            }
            ast::Stmt::Macro(each) => {
                self.tag("macro", |w| {
                    w.name(each.name)?;
                    w.parameters(each)
                })?;
                self.statements(&each.body)?;
                self.end("endmacro")
            }
            ast::Stmt::CallBlock(block) => {
                self.tag("call", |w| {
                    if !block.macro_decl.args.is_empty() {
                        w.parameters(&block.macro_decl)?;
                    }
                    w.called(&block.call)
                })?;
                self.statements(&block.macro_decl.body)?;
                self.end("endcall")
            }
            ast::Stmt::Do(call) => self.tag("do", |w| w.called(&call.call)),
            ast::Stmt::Continue(_) => self.end("continue"),
            ast::Stmt::Break(_) => self.end("break"),
            ast::Stmt::Block(_)
            | ast::Stmt::Import(_)
            | ast::Stmt::FromImport(_)
            | ast::Stmt::Extends(_)
            | ast::Stmt::Include(_)
            | ast::Stmt::AutoEscape(_) => {
                Err(work::refused("it has a tag for web pages (block, extends, include, import or autoescape)"))
            }
        }
    }

    fn for_loop(&mut self, each: &ast::ForLoop) -> Result<()> {
        self.tag("for", |w| {
            w.target(&each.target)?;
            w.push(" in ");
            w.call(work::EACH, &[&each.iter])?;
            if let Some(filter) = &each.filter_expr {
                w.push(" if ");
                w.expression(filter)?;
            }
            w.push(if each.recursive { " recursive" } else { "" });
            Ok(())
        })?;
        self.statements(&each.body)?;
        if !each.else_body.is_empty() {
            self.end("else")?;
            self.statements(&each.else_body)?;
        }
        self.end("endfor")
    }

    fn separated<T>(&mut self, list: &[T], mut each: impl FnMut(&mut Self, &T) -> Result<()>) -> Result<()> {
        for (i, item) in list.iter().enumerate() {
            self.push(if i > 0 { ", " } else { "" });
            each(self, item)?;
        }
        Ok(())
    }

    fn name(&mut self, name: &str) -> Result<()> {
        if name.starts_with("__") {
            return Err(work::refused("a name in it begins with two underscores"));
        }
        self.push(name);
        Ok(())
    }

    /// What is assigned to: a name, names, or a field of a namespace.
    fn target(&mut self, target: &ast::Expr) -> Result<()> {
        match target {
            ast::Expr::Var(var) => self.name(var.id),
            ast::Expr::Tuple(ast) => self.separated(&ast.items, Self::inner_target),
            ast::Expr::List(ast) => self.separated(&ast.items, Self::inner_target),
            other => self.expression(other),
        }
    }

    fn inner_target(&mut self, target: &ast::Expr) -> Result<()> {
        let nested = matches!(target, ast::Expr::Tuple(_) | ast::Expr::List(_));
        self.push(if nested { "(" } else { "" });
        self.target(target)?;
        self.push(if nested { ")" } else { "" });
        Ok(())
    }

    /// `(a, b=1)`: the parameters of a macro, the last of which have the defaults.
    fn parameters(&mut self, each: &ast::Macro) -> Result<()> {
        let without = each.args.len() - each.defaults.len();
        self.push("(");
        for (i, argument) in each.args.iter().enumerate() {
            self.push(if i > 0 { ", " } else { "" });
            self.target(argument)?;
            if i >= without {
                self.push("=");
                self.expression(&each.defaults[i - without])?;
            }
        }
        self.push(")");
        Ok(())
    }

    /// A call of one of the counting functions.
    fn call(&mut self, function: &str, arguments: &[&ast::Expr]) -> Result<()> {
        self.push(function);
        self.push("(");
        self.separated(arguments, |w, argument| w.expression(argument))?;
        self.push(")");
        Ok(())
    }

    /// An operand of a comparison or a key: what is no constant is weighed first.
    fn weighed(&mut self, operand: &ast::Expr) -> Result<()> {
        if matches!(operand, ast::Expr::Const(_)) {
            self.expression(operand)
        } else {
            self.call(work::WEIGHED, &[operand])
        }
    }

    fn called(&mut self, call: &ast::Call) -> Result<()> {
        self.expression(&call.expr)?;
        self.arguments(&call.args)
    }

    fn arguments(&mut self, arguments: &[ast::CallArg]) -> Result<()> {
        self.push("(");
        self.separated(arguments, |w, argument| {
            let value = match argument {
                ast::CallArg::Pos(value) => value,
                ast::CallArg::PosSplat(value) => {
                    w.push("*");
                    return w.call(work::EACH, &[value]);
                }
                ast::CallArg::KwargSplat(value) => {
                    w.push("**");
                    return w.call(work::EACH, &[value]);
                }
                ast::CallArg::Kwarg(name, value) => {
                    w.push(name);
                    w.push("=");
                    value
                }
            };
            w.expression(value)
        })?;
        self.push(")");
        Ok(())
    }

    /// `name(…) | name(…)`: filters without what they are applied to.
    fn filters(&mut self, chain: &ast::Expr) -> Result<()> {
        let ast::Expr::Filter(filter) = chain else {
            return Err(work::refused("a block's filter is something else"));
        };
        if let Some(before) = &filter.expr {
            self.filters(before)?;
            self.push(" | ");
        }
        self.push(filter.name);
        self.arguments(&filter.args)
    }

    /// An expression, in parentheses where it has parts.
    fn expression(&mut self, expression: &ast::Expr) -> Result<()> {
        match expression {
            ast::Expr::Var(var) => self.name(var.id),
            ast::Expr::Const(constant) => self.constant(&constant.value),
            ast::Expr::Filter(filter) => {
                let Some(of) = &filter.expr else { return self.filters(expression) };
                self.push("(");
                self.expression(of)?;
                self.push(" | ");
                self.push(filter.name);
                self.arguments(&filter.args)?;
                self.push(")");
                Ok(())
            }
            ast::Expr::Call(call) => self.called(call),
            ast::Expr::GetAttr(get) => {
                self.expression(&get.expr)?;
                self.push(".");
                self.push(get.name);
                Ok(())
            }
            ast::Expr::GetItem(get) => {
                self.expression(&get.expr)?;
                self.push("[");
                self.weighed(&get.subscript_expr)?;
                self.push("]");
                Ok(())
            }
            ast::Expr::Slice(slice) => {
                self.push(work::SLICE);
                self.push("(");
                self.expression(&slice.expr)?;
                for part in [&slice.start, &slice.stop, &slice.step] {
                    self.push(", ");
                    match part {
                        Some(part) => self.expression(part)?,
                        None => self.push("none"),
                    }
                }
                self.push(")");
                Ok(())
            }
            ast::Expr::List(list) => self.made("[", &list.items, "]"),
            ast::Expr::Tuple(tuple) => self.made("(", &tuple.items, if tuple.items.len() == 1 { ",)" } else { ")" }),
            ast::Expr::Map(map) => {
                self.push(work::WEIGHED);
                self.push("({");
                let pairs: Vec<_> = map.keys.iter().zip(&map.values).collect();
                self.separated(&pairs, |w, (key, value)| {
                    w.weighed(key)?;
                    w.push(": ");
                    w.expression(value)
                })?;
                self.push("})");
                Ok(())
            }
            operation => {
                self.push("(");
                self.operation(operation)?;
                self.push(")");
                Ok(())
            }
        }
    }

    fn made(&mut self, open: &str, items: &[ast::Expr], close: &str) -> Result<()> {
        self.push(work::WEIGHED);
        self.push("(");
        self.push(open);
        self.separated(items, |w, item| w.expression(item))?;
        self.push(close);
        self.push(")");
        Ok(())
    }

    fn operation(&mut self, operation: &ast::Expr) -> Result<()> {
        match operation {
            ast::Expr::UnaryOp(unary) => {
                self.push(match unary.op {
                    ast::UnaryOpKind::Not => "not ",
                    ast::UnaryOpKind::Neg => "-",
                });
                self.expression(&unary.expr)
            }
            ast::Expr::BinOp(binary) => self.binary(binary),
            ast::Expr::Compare(compare) => {
                self.weighed(&compare.expr)?;
                compare.ops.iter().try_for_each(|step| {
                    self.push(match step.op {
                        ast::CompareOpKind::Eq => " == ",
                        ast::CompareOpKind::Ne => " != ",
                        ast::CompareOpKind::Lt => " < ",
                        ast::CompareOpKind::Lte => " <= ",
                        ast::CompareOpKind::Gt => " > ",
                        ast::CompareOpKind::Gte => " >= ",
                        ast::CompareOpKind::In => " in ",
                        ast::CompareOpKind::NotIn => " not in ",
                    });
                    self.weighed(&step.expr)
                })
            }
            ast::Expr::IfExpr(choice) => {
                self.expression(&choice.true_expr)?;
                self.push(" if ");
                self.expression(&choice.test_expr)?;
                choice.false_expr.iter().try_for_each(|other| {
                    self.push(" else ");
                    self.expression(other)
                })
            }
            ast::Expr::Test(test) => {
                self.expression(&test.expr)?;
                self.push(" is ");
                self.push(test.name);
                if test.args.is_empty() { Ok(()) } else { self.arguments(&test.args) }
            }
            _ => Err(work::refused("an expression in it is of an unknown kind")),
        }
    }

    fn binary(&mut self, binary: &ast::BinOp) -> Result<()> {
        let (left, right) = (&binary.left, &binary.right);
        let plain = match binary.op {
            ast::BinOpKind::Concat => return self.call(work::JOINED, &[left, right]),
            ast::BinOpKind::Mul => return self.call(work::TIMES, &[left, right]),
            ast::BinOpKind::Add => {
                self.push(work::MADE);
                self.push("(");
                self.expression(left)?;
                self.push(" + ");
                self.expression(right)?;
                self.push(")");
                return Ok(());
            }
            ast::BinOpKind::ScAnd => " and ",
            ast::BinOpKind::ScOr => " or ",
            ast::BinOpKind::Sub => " - ",
            ast::BinOpKind::Div => " / ",
            ast::BinOpKind::FloorDiv => " // ",
            ast::BinOpKind::Rem => " % ",
            ast::BinOpKind::Pow => " ** ",
            ast::BinOpKind::Eq => " == ",
            ast::BinOpKind::Ne => " != ",
            ast::BinOpKind::Lt => " < ",
            ast::BinOpKind::Lte => " <= ",
            ast::BinOpKind::Gt => " > ",
            ast::BinOpKind::Gte => " >= ",
            ast::BinOpKind::In => " in ",
        };
        let compares = !matches!(binary.op, ast::BinOpKind::ScAnd | ast::BinOpKind::ScOr);
        let operand = if compares { Self::weighed } else { Self::expression };
        operand(self, left)?;
        self.push(plain);
        operand(self, right)
    }

    fn constant(&mut self, value: &Value) -> Result<()> {
        match value.kind() {
            ValueKind::String => {
                let quoted = serde_json::to_string(value.as_str().unwrap_or_default());
                self.push(&quoted.map_err(|error| work::refused(&error.to_string()))?);
            }
            ValueKind::Number if value.is_integer() => self.push(&value.to_string()),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(float) if float.is_finite() => self.push(&format!("{float:?}")),
                _ => return Err(work::refused("a number in it is not finite")),
            },
            ValueKind::Bool => self.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::None => self.push("none"),
            _ => return Err(work::refused("a constant in it is of an unknown kind")),
        }
        Ok(())
    }
}
